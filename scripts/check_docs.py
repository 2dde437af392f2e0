#!/usr/bin/env python3
"""Checks the guide: README.md, docs/**/*.md, and the code that they show.

    scripts/check_docs.py            # prints what is wrong; exit 1 if anything is
    scripts/check_docs.py --write    # copies shown code into the pages again, from its source files

- every relative link leads to a file, and its anchor to a heading or an id there;
- docs/SUMMARY.md lists every page once, and every page it lists exists;
- code under `<!-- from FILE: NAME -->` equals the text in that file between `ANCHOR: NAME` and `ANCHOR_END: NAME`
  (or the whole file, without a name), without its common indentation;
- the file and the anchor of every {{#include}} exist;
- a line is at most 120 characters, but in tables, code and the targets of links;
- a row that begins with a file and a function (`src/x.rs` `f`) names a function of that file;
- no page denies a feature that tenure has, and those who come from another queue are told no "none".
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SHOWN = re.compile(r"<!-- from (?P<file>[^\s:]+)(?:: (?P<name>\w+))? -->\n```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
wrong = []


def fail(path, text):
    wrong.append(f"{path.relative_to(ROOT)}: {text}")


def without_code(text):
    """Removes code and comments, which contain no links."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`|<!--.*?-->", "", text, flags=re.S)


def slug(heading):
    """Returns the anchor that GitHub and mdBook derive from a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path, known={}):
    if path not in known:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        found, seen = set(re.findall(r'(?:id|name)="([^"]+)"', text)), {}
        for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, flags=re.M):
            name = slug(heading)
            seen[name] = seen.get(name, -1) + 1
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
        known[path] = found
    return known[path]


# Features by the words of a page, and where they are: a page that was written before them would deny them.
FEATURES = {
    r"priorit(?:y|ies)": ("src/client/enqueue.rs", "pub fn priority"),
    r"rate limits?": ("src/lanes/api.rs", "pub fn rate"),
    r"tags?": ("src/client/enqueue.rs", "pub fn tag"),
    r"expir(?:y|ies|ation)": ("src/client/enqueue.rs", "pub fn not_after"),
    r"(?:groups?|graphs?|workflows?|batches)": ("src/groups/api.rs", "pub fn graph"),
    r"(?:uniqueness|unique keys?)": ("src/client/enqueue.rs", "pub fn unique_key"),
    r"debounc\w+": ("src/client/enqueue.rs", "pub fn replace"),
    r"(?:schedules?|periodic jobs)": ("src/schedules/api.rs", "pub async fn put_schedule"),
    r"(?:results?|outputs?)": ("src/client/jobs.rs", "pub async fn wait_for"),
}


# Sentences that stood on pages for a year after they had become wrong.
DENIED = ("There is no\nrate limit; use", "**Priorities** are not in tenure yet.", "a job has no priority |", "| `priority` | none yet: a queue |")


def denials(text):
    """Returns what a page denies that tenure has."""
    found = re.findall(r"^\|[^|\n]+\| none yet\b[^|]*", text, flags=re.M)
    text = " ".join(text.split())
    for feature in FEATURES:
        has_no = "there (?:is|are) no|tenure has no" + ("|a job has no|jobs have no" if feature.startswith("priorit") else "")
        found += re.findall(rf"\b(?:{has_no}) {feature}\b(?! of|\w)|{feature}\W+(?:is|are) not in tenure", text, flags=re.I)
    return found


def check_width(page):
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", page.read_text(), flags=re.M | re.S)
    for line in text.splitlines():
        if len(line) > 120 and not re.match(r" *\||\[[^\]]+\]:", line):
            fail(page, f"a line of more than 120 characters: {line[:60]}…")


def check_links(page):
    text = without_code(page.read_text())
    links = re.findall(r"\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)\)", text) + re.findall(r'(?:href|src|srcset)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists():
            fail(page, f"{link} leads nowhere")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            fail(page, f"{link}: the page has no such heading")
    return len(links)


def part(file, name):
    """Returns the text between two anchors, without other anchors' lines; or None."""
    text = file.read_text()
    if name:
        found = re.search(rf"^[^\n]*ANCHOR: {name}\b[^\n]*\n(.*?)^[^\n]*ANCHOR_END: {name}\b", text, re.M | re.S)
        if not found:
            return None
        text = found[1]
    text = re.sub(r"^[^\n]*\bANCHOR(?:_END)?: \w+[^\n]*\n", "", text, flags=re.M)
    return textwrap.dedent(text).strip("\n") + "\n"


def check_code(page, write):
    text = page.read_text()
    opened = len(re.findall(r"^<!-- from ", text, re.M))

    def shown(match):
        file = ROOT / match["file"]
        code = part(file, match["name"]) if file.is_file() else None
        if code is None:
            fail(page, f"{match['file']} has no {match['name'] or 'text'}")
            return match[0]
        if code != match["code"] and not write:
            fail(page, f"the code from {match['file']} ({match['name']}) differs; scripts/check_docs.py --write copies it again")
        head = match[0][: match.start("code") - match.start()]
        return f"{head}{code}```"

    new, count = SHOWN.subn(shown, text)
    if count != opened:
        fail(page, "no block of code follows a `<!-- from … -->`")
    if write and new != text:
        page.write_text(new)
    for target, name in re.findall(r"\{\{#(?:rustdoc_)?include ([^\s:}]+)(?::(\w+))?", text):
        file = (page.parent / target).resolve()
        if not file.is_file() or (name and not name.isdigit() and part(file, name) is None):
            fail(page, f"{{{{#include {target}:{name}}}}} leads nowhere")
    return count


def check_functions(page):
    for file, name in set(re.findall(r"^\| `(src/[\w/]+\.rs)` `(?:\w+::)*(\w+)`", page.read_text(), re.M)):
        path = ROOT / file
        if not path.is_file() or not re.search(rf"\bfn {name}\b", path.read_text()):
            fail(page, f"{file} has no function {name}")


def check_summary():
    summary = DOCS / "SUMMARY.md"
    named = re.findall(r"\]\(([^)#]+\.md)\)", summary.read_text())
    for name in sorted({name for name in named if named.count(name) > 1}):
        fail(summary, f"{name} is listed twice")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"SUMMARY.md"}
    for name in sorted(pages - set(named)):
        fail(summary, f"{name} is missing")


def main(write):
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    links = sum(check_links(page) for page in pages)
    blocks = sum(check_code(page, write) for page in pages)
    check_summary()
    for page in pages:
        check_functions(page)
        check_width(page)
        for denied in denials(page.read_text()):
            fail(page, f"denies a feature: {denied!r}")
    for sentence in DENIED:
        assert denials(sentence), f"the check does not find {sentence!r}"
    for file, text in FEATURES.values():
        if text not in (ROOT / file).read_text():
            fail(ROOT / file, f"has no {text!r} any more: does scripts/check_docs.py list a feature that is gone?")
    for text in wrong:
        print(text, file=sys.stderr)
    if wrong:
        return 1
    print(f"{len(pages)} pages, {links} links, {blocks} blocks of code from files: all correct")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--write"]):
        sys.exit(__doc__)
    sys.exit(main("--write" in sys.argv))
