"""Checks the licences, sources and bans of deny.toml with `cargo metadata` alone, in a second; building cargo-deny takes
minutes. `ONLY=licences make release` also checks advisories. Also checks that no dependency needs a newer Rust than tenure."""

import json
import re
import subprocess
import sys
import tomllib

with open("deny.toml", "rb") as file:
    deny = tomllib.load(file)
metadata = json.loads(subprocess.run(
    ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"],
    check=True, stdout=subprocess.PIPE).stdout)
allowed = set(deny["licenses"]["allow"])
exceptions = {of["name"]: set(of["allow"]) for of in deny["licenses"].get("exceptions", [])}
wrong = []
own = set(metadata["workspace_members"])


def version(text):
    return tuple(int(part) for part in (text.split(".") + ["0", "0"])[:3])


msrv = next(package["rust_version"] for package in metadata["packages"] if package["id"] in own)
for package in metadata["packages"]:
    name = f"{package['name']} {package['version']}"
    may = allowed | exceptions.get(package["name"], set())
    # `A OR (B AND C)`, or the old form with a slash: all parts of one alternative must be allowed.
    text = re.sub(r"[()]", " ", package["license"] or "none").replace("/", " OR ")
    ways = [way.split(" AND ") for way in text.split(" OR ")]
    if not any(all(part.strip() in may for part in way) for way in ways):
        wrong.append(f"{name}: its licence {package['license']!r} is not allowed")
    if version(package["rust_version"] or "1.0") > version(msrv):
        wrong.append(f"{name}: needs Rust {package['rust_version']}, newer than tenure's {msrv}")
    # vendor/ has copies with a change, each with its reason.
    is_ours = package["id"] in own or "/vendor/" in package["id"]
    if not is_ours and package["source"] != "registry+https://github.com/rust-lang/crates.io-index":
        wrong.append(f"{name}: comes from {package['source']}")
names = {package["id"]: package["name"] for package in metadata["packages"]}
for ban in deny["bans"]["deny"]:
    for node in metadata["resolve"]["nodes"]:
        if any(names[of["pkg"]] == ban["name"] for of in node["deps"]) and names[node["id"]] not in ban["wrappers"]:
            wrong.append(f"{names[node['id']]} depends on {ban['name']}")
for line in wrong:
    print(f"dependencies: {line}", file=sys.stderr)
print(f"dependencies: {len(metadata['packages'])} packages, {len(wrong)} wrong")
sys.exit(bool(wrong))
