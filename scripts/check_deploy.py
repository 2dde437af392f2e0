#!/usr/bin/env python3
"""Checks the Kubernetes manifests, docker-compose.yml and the Dockerfile.

Needs no cluster, no Docker and no network. It compares them

- with published schemas, strictly: an unknown field is an error;
- with the code and the docs: paths of probes, names of settings, metrics, streams, roles, rights of NATS users, and the
  longest time of a stop;
- with each other: selectors, names of Secrets, volumes, ports.

`--self-test` breaks a copy of the files, one mistake at a time, and expects to find each.

scripts/check-deploy installs what this needs, and runs it.
"""

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import yaml

KUSTOMIZATIONS = ["base", "overlays/keda", "overlays/hpa", "overlays/statefulset", "overlays/python"]
# The oldest supported Kubernetes (ReadWriteOncePod, unhealthyPodEvictionPolicy), and the newest known schema.
KUBERNETES = ["1.31", kubernetes_validate.latest_version()]
# The keys that KEDA's scaler of this name reads; it silently ignores others.
JETSTREAM_KEYS = {
    "natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold", "activationLagThreshold",
    "useHttps",
}
POD_OWNERS = {"Deployment", "StatefulSet", "Job"}
# The ports of Postgres and NATS.
POSTGRES, NATS = 5432, 4222
PROBES = {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


class Broken(Exception):
    """A file that cannot be checked."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses YAML that gives a key twice: the parser would silently take the last."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise Broken(f"{key.start_mark.name}, line {key.start_mark.line + 1}: {key.value} is given twice")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.load_all(file, Loader) if document is not None]


def seconds(text):
    """Returns the seconds of a duration, as tenure reads it."""
    units = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hours": 3600, "day": 86400, "days": 86400}
    parts = re.findall(r"(\d+)\s*([a-z]+)", text)
    if not parts or any(unit not in units for _, unit in parts):
        raise Broken(f"{text!r} is not a duration that this check can read")
    return sum(int(number) * units[unit] for number, unit in parts)


class Facts:
    """Facts that the code and the docs state."""

    def __init__(self, root):
        def read(path):
            return (root / path).read_text(encoding="utf-8")

        self.routes = set()
        for path in sorted((root / "src").rglob("*.rs")):
            self.routes |= set(re.findall(r'\.route\(\s*"(/[^"]*)"', path.read_text(encoding="utf-8")))
        self.settings = set()
        for row in re.findall(r"^\| (`[A-Z].*?) \|", read("docs/configuration.md"), re.M):
            self.settings |= set(re.findall(r"`([A-Z_]+)`", row))
        self.metrics = {}
        row = r"^\| `(tenure_\w+)` \| \w+ \| (.*?) \| (.*?) \|"
        for name, labels, meaning in re.findall(row, read("docs/metrics.md"), re.M):
            self.metrics[name] = (set(re.findall(r"`(\w+)`", labels)), set(re.findall(r"`(\w+)`", meaning)))
        self.stream = json.loads(read("nats/stream.json"))["name"]
        self.consumer = json.loads(read("nats/consumer.json"))["durable_name"]
        # With the users that are examples. Then without comments.
        server = re.sub(r"(?ms)^      # \{\n.*?^      # \}\n", lambda user: re.sub(r"(?m)^      # ", "      ", user[0]),
                        read("nats/server.conf"))
        server = re.sub(r"#.*", "", server)
        self.accounts = set(re.findall(r"^  (\w+) \{", server.split("accounts {")[1], re.M))
        self.users = dict(re.findall(r"user: (\w+), password: \$(\w+)", server))
        self.inboxes = set(re.findall(r'"(_INBOX_\w+)\.>"', server))
        users = re.findall(r"user: (\w+)(.*?)(?=user: |\Z)", server, re.S)
        self.rights = {user: self._rights(block) for user, block in users}
        self.roles = set(re.findall(r"'(tenure_\w+)'", read("postgres/roles.sql")))
        dockerfile = read("Dockerfile")
        self.targets = re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.M)
        self.users_of_images = re.findall(r"^USER (\S+)", dockerfile, re.M)
        self.exposed = {int(port) for port in re.findall(r"^EXPOSE (\d+)", dockerfile, re.M)}
        self.timers = self._timers(read)
        # The client for Python. A readiness probe knows the event in its log.
        self.client_version = re.search(r'^version = "(.*)"$', read("clients/python/pyproject.toml"), re.M)[1]
        self.says_ready = '"event": "ready"' in read("clients/python/src/tenure/_worker.py")
        for name in ("routes", "settings", "metrics", "accounts", "users", "inboxes", "rights", "roles", "targets"):
            if not getattr(self, name):
                raise Broken(f"found no {name}; has a file moved or changed its form?")

    @staticmethod
    def _rights(block):
        """Returns what a NATS user may publish, what it may subscribe to, and for how long it may answer."""
        found = {}
        for of in ("publish", "subscribe"):
            allowed = re.search(of + r": \{\s*allow: \[(.*?)\]", block, re.S)
            found[of] = set(re.findall(r'"([^"]+)"', allowed[1])) if allowed else {">"}
        answers = re.search(r'allow_responses: \{ max: \d+, expires: "(\w+)" \}', block)
        found["answers"] = seconds(answers[1]) if answers else 0
        return found

    @staticmethod
    def _timers(read):
        def of(path, form):
            found = re.search(form, read(path), re.M)
            if found is None:
                raise Broken(f"{path}: nothing matches {form}, so the longest time of a stop is unknown")
            return float(found[1])

        text = read("src/config/timing.rs").split("pub const DEFAULT: Self = Self {")[1].split("};")[0]
        units = {"secs": 1, "mins": 60, "hours": 3600, "millis": 0.001}
        timers = {
            name: int(number.replace("_", "")) * units[unit]
            for name, unit, number in re.findall(r"(\w+): Duration::from_(\w+)\(([\d_]+)\)", text)
        }
        # A command's time to end after it was asked to: tenure-cli/src/commands/work.rs adds these up.
        timers["command_grace"] = (
            of("tenure-cli/src/exec/guard.rs", r"const TERM_GRACE: Duration = Duration::from_secs\((\d+)\)")
            + of("tenure-cli/src/exec/mod.rs", r"const LAST_WORDS: Duration = Duration::from_secs\((\d+)\)")
            + of("tenure-cli/src/commands/work.rs", r"guard::TERM_GRACE \+ exec::LAST_WORDS \+ Duration::from_secs\((\d+)\)")
        )
        # The longest wait of a request to a gateway, and for how much longer its sender expects the answer.
        timers["request_wait"] = of("src/gateway/mod.rs", r"const WAIT_MAX: Duration = Duration::from_secs\((\d+)\)")
        answered = timers["answered"] = of("clients/python/src/tenure/_wire.py", r"^ANSWERED_WITHIN = ([\d.]+)$")
        # The client for Python stops: the answer to its last `take`, the grace, the cancelled handlers, the goodbye.
        client = "clients/python/src/tenure/_worker.py"
        take, handlers = of(client, r"^WAIT = ([\d.]+)$"), of(client, r"self\._until_idle\(([\d.]+)\)")
        timers["client_stop"] = take + answered + handlers + answered
        return timers

    def stopping(self, settings, arguments):
        """Returns the longest time that a worker takes to stop (src/worker/shutdown.rs): the last pull, the grace, the
        cancelled handlers, the last publications, and the removal of its row. A gateway has no jobs: the last requests,
        the rates, the last publications, its turns, and the removal of its row."""
        def timer(name):
            given = settings.get(f"TENURE_{name.upper()}")
            return self.timers[name] if given is None else seconds(given)

        if arguments[0] == "gateway":
            return timer("pull_for") + 4 * timer("database_within") + timer("publish_within")
        cancel = max(timer("cancel_grace"), self.timers["command_grace"] if "--exec" in arguments else 0)
        return sum([
            timer("pull_for"), timer("shutdown_grace"), cancel, timer("database_within"), timer("publish_within"),
            timer("database_within"),
        ])


class Found(Exception):
    """Ends a check: the expected mistake was found."""


class Check:
    def __init__(self, root, facts, until=None):
        self.root = root
        self.facts = facts
        self.until = until
        self.errors = []

    def wrong(self, where, what):
        self.errors.append(f"{where}: {what}")
        if self.until is not None and self.until in self.errors[-1]:
            raise Found

    def need(self, condition, where, what):
        if not condition:
            self.wrong(where, what)
        return bool(condition)

    # ---- environment -----------------------------------------------------------------------------------------------

    def environment(self, where, names, command):
        """Checks the variables of a container that runs `tenure`; an unknown one would end it with exit 2."""
        for name in names:
            if name.startswith("TENURE_SERVE_"):
                self.need(name in self.facts.settings, where, f"{name} is not a setting")
                self.need(command == "serve", where, f"only `tenure serve` reads {name}")
            elif name != "RUST_LOG" and not name.startswith("OTEL_"):
                self.need(name in self.facts.settings, where, f"{name} is not a setting (docs/configuration.md)")
        for url in ("DATABASE_URL", "NATS_URL"):
            given = [name for name in (url, f"{url}_FILE") if name in names]
            self.need(len(given) == 1, where, f"{url} must be set once, as a value or as a file; found {given}")
        if command == "serve":
            auth = {f"TENURE_SERVE_{by}" for by in ("PASSWORD", "VIEWER_PASSWORD", "TOKEN", "AUTH")} & set(names)
            self.need(auth, where, "`tenure serve` beyond loopback refuses to start without authentication")

    def inbox(self, where, prefix, user):
        self.need(prefix in self.facts.inboxes, where, f"{prefix} is no inbox prefix of nats/server.conf")
        self.need(user in self.facts.users, where, f"{user} is no user of nats/server.conf")
        self.need(prefix == f"_INBOX_{user}", where, f"the inbox prefix of NATS's user {user} is not {prefix}")

    # ---- Kubernetes ------------------------------------------------------------------------------------------------

    def kubernetes(self):
        folder = self.root / "deploy/kubernetes"
        examples = self.examples(folder / "secrets.example.yaml")
        for name in KUSTOMIZATIONS:
            for path in sorted((folder / name).glob("*.yaml")):
                load_yaml(path)
            documents = render(folder / name, None if name == "base" else folder / "base")
            for document in documents:
                self.schema(f"{name}: {called(document)}", document)
            manifests = Manifests(self, name, documents, examples)
            manifests.check()
            if name == "overlays/python":
                self.program(manifests)
        self.adapter(folder / "overlays/hpa/prometheus-adapter.yaml")
        self.documented(folder / "base", examples)

    def documented(self, base, examples):
        """Checks the reader's own files in docs/kubernetes.md: the overlay renders and is valid, and the Secrets are
        complete."""
        where = "docs/kubernetes.md"
        text = (self.root / where).read_text(encoding="utf-8")
        found = re.search(r"```yaml\n(# kustomization.yaml\n.*?)```", text, re.S)
        if not self.need(found, where, "its example of an overlay was not found"):
            return
        with tempfile.TemporaryDirectory() as overlay:
            here = os.path.relpath(base.resolve(), Path(overlay).resolve())
            example = re.sub(r"\.\./\S*/base", here, found[1])
            (Path(overlay) / "kustomization.yaml").write_text(example, encoding="utf-8")
            documents = render(Path(overlay), base)
        for document in documents:
            self.schema(f"{where}: {called(document)}", document)
        served = {document["kind"]: document["spec"]["template"]["spec"]["containers"][0]["args"]
                  for document in documents if called(document) in ("Deployment tenure-worker", "Job tenure-migrate")}
        for queue in queues_of(served["Deployment"]):
            self.need(queue in queues_created_by(served["Job"]), where,
                      f"its worker serves {queue}, which its Job does not name")
        created = {name: set(re.findall(r"--from-literal=(\w+)=", rest))
                   for name, rest in re.findall(r"create secret generic (\S+)(.*)", text)}
        for name, secret in examples.items():
            self.need(created.get(name) == set(secret), where,
                      f"creates {name} with the keys {sorted(created.get(name, []))}, not {sorted(secret)}")

    def program(self, manifests):
        """Checks the program and the Dockerfile of a Python worker in docs/kubernetes.md against its Deployment."""
        where = "docs/kubernetes.md"
        text = (self.root / where).read_text(encoding="utf-8")
        program = re.search(r"```python\n(# worker\.py\n.*?)```", text, re.S)
        image = re.search(r"```dockerfile\n(.*?)```", text, re.S)
        if not self.need(program and image, where, "its worker.py or its Dockerfile was not found"):
            return
        try:
            compile(program[1], "worker.py", "exec")
        except SyntaxError as error:
            self.wrong(where, f"its worker.py is no Python: {error}")
        name = "Deployment tenure-python"
        if not self.need(name in manifests.templates, where, f"there is no {name} for its worker.py"):
            return
        container = manifests.templates[name]["spec"]["containers"][0]
        read, given = set(re.findall(r'env\["(\w+)"\]', program[1])), set(manifests.settings[name])
        self.need(read == given, where, f"its worker.py reads {sorted(read)}, and tenure-python sets {sorted(given)}")
        file = container.get("readinessProbe", {}).get("exec", {}).get("command", [None])[-1]
        self.need(f'"{file}"' in program[1], where, f"its worker.py does not write {file}, for which the probe waits")
        for line in hadolint(image[1]) or []:
            self.wrong(where, f"its Dockerfile: {line}")
        users = set(re.findall(r"^USER (\S+)", image[1], re.M))
        self.need(users == set(self.facts.users_of_images), where, f"its Dockerfile has the users {users}")
        wheel = f"tenure-{self.facts.client_version}-py3-none-any.whl"
        named = set(re.findall(r"tenure-[\d.]+-py3-none-any\.whl", text))
        self.need(named == {wheel}, where, f"it names the wheels {sorted(named)}, but the client's is {wheel}")
        started = re.search(r"^CMD (\[.*\])$", image[1], re.M)
        command = container.get("command")
        self.need(started and json.loads(started[1]) == command, where,
                  f"its Dockerfile does not start {command}, as tenure-python does")

    def examples(self, path):
        secrets = {}
        for document in load_yaml(path):
            self.schema(path.name, document)
            name = document["metadata"]["name"]
            secrets[name] = document.get("stringData", {})
            for key, value in secrets[name].items():
                self.need("CHANGE-ME" in value, path.name, f"{name}/{key} looks like a real secret")
        for role in re.findall(r"\btenure_(?:worker|viewer|operator|producer)\b", path.read_text(encoding="utf-8")):
            self.need(role in self.facts.roles, path.name, f"{role} is no role of postgres/roles.sql")
        return secrets

    def schema(self, where, document):
        if document["apiVersion"].startswith("keda.sh/"):
            return self.keda_schema(where, document)
        for version in KUBERNETES:
            error = against_kubernetes(version, json.dumps(document, sort_keys=True))
            self.need(error is None, where, f"Kubernetes {version}: {error}")

    def keda_schema(self, where, document):
        schema = json.loads((self.root / "deploy/schemas/keda-scaledobject.json").read_text(encoding="utf-8"))
        for error in jsonschema.Draft7Validator(schema).iter_errors(document):
            self.wrong(where, f"KEDA: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}")
        # A type of Kubernetes within KEDA's.
        config = document.get("spec", {}).get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        if "behavior" in config:
            autoscaler = {
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
                "spec": {"maxReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "x"}, **config},
            }
            autoscaler["spec"].pop("name", None)
            self.schema(where, autoscaler)

    def adapter(self, path):
        (document,) = load_yaml(path)
        self.need(set(document) == {"externalRules"}, path.name, "only externalRules are expected")
        for rule in document["externalRules"]:
            unknown = set(rule) - {"seriesQuery", "seriesFilters", "resources", "name", "metricsQuery"}
            self.need(not unknown, path.name, f"the adapter knows no {unknown}")
            series = re.match(r"\w+", rule["seriesQuery"])[0]
            if self.need(series in self.facts.metrics, path.name, f"{series} is no metric of docs/metrics.md"):
                labels, values = self.facts.metrics[series]
                by = re.findall(r"by \(([^)]*)\)", rule["metricsQuery"])
                used = {label.strip() for group in by for label in group.split(",")}
                self.need(used <= labels, path.name, f"{series} has no label {used - labels}")
                for label, wanted in re.findall(r'(\w+)=~"([^"]*)"', rule["metricsQuery"]):
                    self.need(label in labels, path.name, f"{series} has no label {label}")
                    self.need(set(wanted.split("|")) <= values, path.name, f"{label} is never one of {wanted}")
            for part in ("<<.Series>>", "<<.LabelMatchers>>"):
                self.need(part in rule["metricsQuery"], path.name, f"metricsQuery lacks {part}")

    # ---- docker-compose.yml ----------------------------------------------------------------------------------------

    def compose(self):
        where = "docker-compose.yml"
        (raw,) = load_yaml(self.root / where)
        document = self.interpolate(where, raw)
        schema = json.loads((self.root / "deploy/schemas/compose-spec.json").read_text(encoding="utf-8"))
        for error in jsonschema.Draft202012Validator(schema).iter_errors(document):
            best = jsonschema.exceptions.best_match([error])
            self.wrong(where, f"{'.'.join(map(str, best.absolute_path))}: {best.message[:300]}")
        services = document.get("services", {})
        for name, service in services.items():
            self.service(f"{where}: {name}", service, services, document.get("volumes") or {})

    def interpolate(self, where, value):
        if isinstance(value, dict):
            return {key: self.interpolate(where, one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.interpolate(where, one) for one in value]
        if not isinstance(value, str):
            return value

        def resolve(match):
            if match["escaped"]:
                return "$"
            name, default = match["name"] or match["bare"], match["default"]
            if name is None:
                self.wrong(where, f"{value!r} contains a $ that starts no variable; write $$ for a $")
                return "$"
            if default is None:
                self.wrong(where, f"{name} has no default: `docker compose up` would leave it empty")
            return default or ""

        form = r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::?-(?P<default>[^}]*))?\}|(?P<bare>[A-Za-z_]\w*)|)"
        return re.sub(form, resolve, value)

    def service(self, where, service, services, volumes):
        env = service.get("environment") or {}
        build = service.get("build")
        for name, of in (service.get("depends_on") or {}).items():
            if self.need(name in services, where, f"depends on {name}, which is not a service"):
                healthy = of.get("condition") == "service_healthy"
                self.need(not healthy or services[name].get("healthcheck"), where, f"{name} has no healthcheck")
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            exists = (self.root / source).exists() if source.startswith(".") else source in volumes
            self.need(exists, where, f"{source} is neither a volume nor a file")
        for port in service.get("ports", []):
            self.need(port.startswith("127.0.0.1:"), where, f"{port} is open to the network; name 127.0.0.1")
        if build is None:
            for name in env:
                known = name in self.facts.users.values() or not name.startswith("TENURE_")
                self.need(known, where, f"{name} is no variable of nats/server.conf")
            return
        self.need(isinstance(build, dict) and build.get("target") in self.facts.targets, where,
                  f"build.target is none of the Dockerfile's: {self.facts.targets}")
        command = service["command"][0]
        self.environment(where, env, command)
        for url in ("DATABASE_URL", "NATS_URL"):
            parts = urlsplit(env[url]) if url in env else None
            self.need(parts is None or parts.hostname in services, where, f"{url} names no service")
            if url == "NATS_URL" and parts is not None:
                self.inbox(where, env.get("TENURE_NATS_INBOX_PREFIX"), parts.username)
        if command in ("work", "serve"):
            listen = urlsplit("//" + env.get("TENURE_LISTEN", ""))
            self.need(listen.port in self.facts.exposed, where, "TENURE_LISTEN is not the port that the image exposes")
            for port in service.get("ports", []):
                self.need(port.endswith(f":{listen.port}"), where, f"{port} does not lead to the port of TENURE_LISTEN")
            test = " ".join((service.get("healthcheck") or {}).get("test", []))
            paths = set(re.findall(r"GET (/\w*)", test))
            if self.need(paths, where, "has no healthcheck that requests a path"):
                self.need(paths <= self.facts.routes, where, f"the healthcheck requests {paths}, which tenure does not answer")
                self.need(f"/{listen.port}" in test, where, "the healthcheck does not use the port of TENURE_LISTEN")
        if command == "work":
            has, needs = seconds(service.get("stop_grace_period", "10s")), self.facts.stopping(env, service["command"])
            self.need(has >= needs, where, f"stop_grace_period is {has:g} s, but stopping may take {needs:g} s")

    # ---- Dockerfile ------------------------------------------------------------------------------------------------

    def dockerfile(self):
        where = "Dockerfile"
        finals = [target for target in self.facts.targets if target != "build"]
        self.need(len(self.facts.users_of_images) >= len(finals), where, "an image has no USER: it would run as root")
        for user in self.facts.users_of_images:
            self.need(re.fullmatch(r"[1-9]\d*(:\d+)?", user), where,
                      f"USER {user} is no number: Kubernetes cannot see that it is not root")
        lines = hadolint((self.root / where).read_text(encoding="utf-8"))
        if self.need(lines is not None, where, "hadolint was not found; scripts/check-deploy installs it"):
            for line in lines:
                self.wrong(where, line)


class Manifests:
    """One kustomization, rendered."""

    def __init__(self, check, name, documents, examples):
        self.check_ = check
        self.name = name
        self.facts = check.facts
        self.examples = examples
        self.documents = documents
        self.owners = [document for document in documents if document["kind"] in POD_OWNERS]
        self.templates = {called(owner): owner["spec"]["template"] for owner in self.owners}
        # Of each owner of pods, when it has been looked at.
        self.settings = {}

    def of(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def names(self, kind):
        return {document["metadata"]["name"] for document in self.of(kind)}

    def need(self, condition, document, what):
        return self.check_.need(condition, f"{self.name}: {called(document)}", what)

    def check(self):
        for document in self.documents:
            if document["kind"] != "Namespace":
                self.need(document["metadata"].get("namespace") == "tenure", document, "is in another namespace")
        for secret in self.of("Secret"):
            self.need(False, secret, "a Secret is committed")
        for account in self.of("ServiceAccount"):
            self.need(account.get("automountServiceAccountToken") is False, account, "mounts a token")
        for owner in self.owners:
            self.owner(owner)
        for service in self.of("Service"):
            targets = self.selected(service, {"matchLabels": service["spec"].get("selector")})
            for port in service["spec"]["ports"]:
                self.port(service, port.get("targetPort", port["port"]), targets)
        for budget in self.of("PodDisruptionBudget"):
            self.selected(budget, budget["spec"]["selector"])
        for policy in self.of("NetworkPolicy"):
            targets = self.selected(policy, policy["spec"]["podSelector"])
            for rule in policy["spec"].get("ingress", []):
                for port in rule.get("ports", []):
                    self.port(policy, port["port"], targets, any)
        images = {tuple(container["image"].rpartition(":")[::2]) for template in self.templates.values()
                  for container in template["spec"]["containers"]}
        versions = sorted({tag for image, tag in images if image in self.facts.targets})
        self.check_.need(len(versions) == 1, self.name, f"tenure's images have the versions {versions}")
        scraping = [policy["spec"]["podSelector"] for policy in self.of("NetworkPolicy")
                    if "monitoring" in json.dumps(policy["spec"].get("ingress", []))]
        for owner in self.owners:
            scraped = owner["spec"]["template"]["metadata"].get("annotations", {}).get("prometheus.io/scrape") == "true"
            admitted = any(called(owner) in self.templates_of(selector) for selector in scraping)
            self.need(admitted or not scraped, owner, "is scraped, but no NetworkPolicy lets Prometheus in")
            self.egress(owner)
            for container in owner["spec"]["template"]["spec"]["containers"]:
                if is_foreign(container):
                    self.asks_gateways(owner, container)
        for autoscaler in self.of("HorizontalPodAutoscaler"):
            self.autoscaler(autoscaler)
        for scaled in self.of("ScaledObject"):
            self.scaled(scaled)

    def templates_of(self, selector):
        return [name for name, template in self.templates.items() if selects(selector, template["metadata"]["labels"])]

    def selected(self, document, selector):
        """Returns the pods that a selector matches, which must be at least one kind."""
        found = self.templates_of(selector) if selector.get("matchLabels") else []
        self.need(found, document, f"selects no pod: {selector.get('matchLabels')}")
        return found

    def egress(self, owner):
        """Checks the ports that the policies open for these pods, which add up."""
        policies = [policy["spec"] for policy in self.of("NetworkPolicy") if "Egress" in policy["spec"]["policyTypes"]]
        rules = [rule for spec in policies if called(owner) in self.templates_of(spec["podSelector"])
                 for rule in spec.get("egress", [])]
        if not self.need(rules, owner, "no NetworkPolicy limits its egress"):
            return
        # A rule without ports opens all of them.
        opened = {port["port"] for rule in rules for port in rule.get("ports", [{"port": POSTGRES}, {"port": NATS}])}
        self.need(NATS in opened, owner, "no NetworkPolicy lets it reach NATS")
        foreign = any(is_foreign(container) for container in owner["spec"]["template"]["spec"]["containers"])
        self.need((POSTGRES in opened) != foreign, owner,
                  "a NetworkPolicy lets it reach Postgres" if foreign else "no NetworkPolicy lets it reach Postgres")

    def port(self, document, port, targets, how=all):
        for name in targets:
            spec = self.templates[name]["spec"]
            known = {one for container in spec["containers"] for given in container.get("ports", [])
                     for one in (given.get("name"), given["containerPort"])}
            if how is all:
                self.need(port in known, document, f"{name} has no port {port}")
        if how is any:
            ports = {one for name in targets for container in self.templates[name]["spec"]["containers"]
                     for given in container.get("ports", []) for one in (given.get("name"), given["containerPort"])}
            self.need(port in ports, document, f"no pod has a port {port}")

    def settings_of(self, owner, container):
        """Returns names and values of the environment; a value is None if it comes from a Secret."""
        found = {}
        for source in container.get("envFrom", []):
            name = source.get("configMapRef", {}).get("name")
            data = {map_["metadata"]["name"]: map_.get("data", {}) for map_ in self.of("ConfigMap")}
            if self.need(name in data, owner, f"there is no ConfigMap {name}"):
                found.update(data[name])
        for variable in container.get("env", []):
            self.need(variable["name"] not in found, owner, f"{variable['name']} is given twice")
            found[variable["name"]] = variable.get("value")
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                known = reference["key"] in self.examples.get(reference["name"], {})
                self.need(known, owner, f"secrets.example.yaml has no {reference['name']}/{reference['key']}")
        return found

    def owner(self, owner):
        spec = owner["spec"]["template"]["spec"]
        labels = owner["spec"]["template"]["metadata"].get("labels", {})
        need = functools.partial(self.need, document=owner)
        selector = owner["spec"].get("selector", {}).get("matchLabels", {})
        need(selector.items() <= labels.items(), what=f"its selector {selector} does not match its pods' labels")
        need(owner["kind"] == "Job" or selector, what="has no selector")
        for spread in spec.get("topologySpreadConstraints", []):
            own = spread["labelSelector"]["matchLabels"]
            need(own.items() <= labels.items(), what=f"spreads pods that are not its own: {own}")
        need(spec.get("serviceAccountName") in self.names("ServiceAccount"), what="has no own ServiceAccount")
        need(spec.get("automountServiceAccountToken") is False, what="mounts a token")
        need(spec.get("enableServiceLinks") is False, what="gets variables for Services, some as TENURE_…")
        if owner["kind"] == "StatefulSet":
            service = owner["spec"].get("serviceName")
            need(service in self.names("Service"), what=f"its Service {service} is missing")
        if owner["kind"] == "Deployment":
            rolling = owner["spec"].get("strategy", {}).get("rollingUpdate", {})
            need(rolling.get("maxUnavailable") == 0, what="stops a pod before its successor is ready")
        pod = spec.get("securityContext", {})
        need(pod.get("runAsNonRoot") is True, what="may run as root")
        user = f"{pod.get('runAsUser')}:{pod.get('runAsGroup')}"
        need(user in self.facts.users_of_images, what=f"runs as {user}, the images as {self.facts.users_of_images}")
        need(pod.get("seccompProfile", {}).get("type") == "RuntimeDefault", what="has no seccomp profile")
        claims = {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        mounted = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", [])}
        need(mounted == claims | set(volumes), what=f"mounts {sorted(mounted)} of {sorted(claims | set(volumes))}")
        for container in spec["containers"]:
            self.container(owner, spec, container, volumes, claims)

    def container(self, owner, spec, container, volumes, claims):
        need = functools.partial(self.need, document=owner)
        own = container.get("securityContext", {})
        need(own.get("allowPrivilegeEscalation") is False, what="may gain rights")
        need(own.get("readOnlyRootFilesystem") is True, what="may write to its image")
        need(own.get("capabilities", {}).get("drop") == ["ALL"], what="keeps capabilities")
        resources = container.get("resources", {})
        memory = [resources.get(of, {}).get("memory") for of in ("requests", "limits")]
        need(memory[0] and memory[0] == memory[1], what=f"requests {memory[0]} of memory and is limited to {memory[1]}")
        need(resources.get("requests", {}).get("cpu"), what="requests no CPU")
        image, _, tag = container["image"].rpartition(":")
        need(image and tag != "latest" and "/" not in tag, what=f"its image {container['image']} has no version")
        settings = self.settings[called(owner)] = self.settings_of(owner, container)
        if is_foreign(container):
            return self.foreign(owner, spec, container, volumes)
        need(image.split("/")[-1] in self.facts.targets, what=f"{image} is no target of the Dockerfile")

        arguments = container.get("args", [])
        command = arguments[0] if arguments else None
        self.check_.environment(f"{self.name}: {called(owner)}", settings, command)
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
        for name, value in settings.items():
            if name.endswith("_FILE"):
                folder, key = value.rsplit("/", 1)
                secret = volumes.get(mounts.get(folder, {}).get("name"), {}).get("secret", {}).get("secretName")
                need(key in self.examples.get(secret, {}), what=f"{name}: {value} is no key of a mounted Secret")
                if name == "NATS_URL_FILE" and key in self.examples.get(secret, {}):
                    user = urlsplit(self.examples[secret][key]).username
                    where = f"{self.name}: {called(owner)}"
                    self.check_.inbox(where, settings.get("TENURE_NATS_INBOX_PREFIX"), user)
                    if serves_others(arguments):
                        self.answers(owner, user)
        if "--exec" in arguments:
            need(image.split("/")[-1] == "tenure-exec", what="`work --exec` needs a shell: the image tenure-exec")
        if command in ("work", "gateway"):
            writable = {path for path, mount in mounts.items()
                        if "emptyDir" in volumes.get(mount["name"], {}) or mount["name"] in claims}
            for folder in (settings.get("TENURE_RUNTIME_DIR"), *(["/tmp"] if command == "work" else [])):
                need(folder in writable, what=f"{folder} cannot be written to")
            self.stops(owner, spec, self.facts.stopping(settings, arguments))
        if command == "work":
            served = queues_of(arguments)
            need(served, what="names no queue after `work`")
            for queue in served:
                need(queue in self.created(), what=f"serves {queue}, which `tenure migrate` does not name")
        if command == "gateway":
            need(arguments == ["gateway"], what=f"`tenure gateway` has no arguments, but gets {arguments[1:]}")
        if command in ("work", "serve", "gateway"):
            self.probes(owner, container, settings)
        return None

    def stops(self, owner, spec, needs):
        grace = spec.get("terminationGracePeriodSeconds", 30)
        self.need(grace >= needs, owner, f"is killed after {grace} s, but stopping may take {needs:g} s")

    def answers(self, owner, user):
        """Checks that the NATS user of a gateway may still answer a request that has waited."""
        has = self.facts.rights.get(user, {"answers": 0})["answers"]
        needs = self.facts.timers["request_wait"] + self.facts.timers["answered"]
        self.need(has >= needs, owner,
                  f"its NATS user {user} may answer a request for {has:g} s, but a request may wait for {needs:g} s")

    def foreign(self, owner, spec, container, volumes):
        """Checks a worker in another language: docs/kubernetes.md has its program, which reads these variables."""
        need = functools.partial(self.need, document=owner)
        settings = self.settings[called(owner)]
        for name in settings:
            need("DATABASE" not in name and not name.startswith("PG"), what=f"has {name}, but needs no Postgres")
            need(not name.startswith("TENURE_"), what=f"{name} is a setting of tenure, which its client does not read")
        secrets = {variable["valueFrom"]["secretKeyRef"]["name"] for variable in container.get("env", [])
                   if "secretKeyRef" in variable.get("valueFrom", {})}
        secrets |= {source["secretRef"]["name"] for source in container.get("envFrom", []) if "secretRef" in source}
        secrets |= {volume["secret"]["secretName"] for volume in volumes.values() if "secret" in volume}
        for secret in sorted(secrets):
            keys = sorted(self.examples.get(secret, {}))
            need(keys == ["nats_url"], what=f"its Secret {secret} holds {keys}, not only a URL of NATS")
        names = ("NATS_URL", "NATS_INBOX_PREFIX", "QUEUE", "SLOTS", "GRACE")
        missing = [name for name in names if name not in settings]
        if not need(not missing, what=f"lacks {missing}"):
            return
        for name in ("SLOTS", "GRACE"):
            is_number = re.fullmatch(r"[1-9]\d*", settings[name] or "")
            if not need(is_number, what=f"{name} is {settings[name]}, not a number"):
                return
        self.stops(owner, spec, int(settings["GRACE"]) + self.facts.timers["client_stop"])
        queue = settings["QUEUE"]
        need(queue in self.created(), what=f"serves {queue}, which `tenure migrate` does not name")
        command = container.get("readinessProbe", {}).get("exec", {}).get("command", [])
        writable = {mount["mountPath"] for mount in container.get("volumeMounts", [])
                    if "emptyDir" in volumes.get(mount["name"], {})}
        need(command[:2] == ["test", "-e"] and len(command) == 3 and str(Path(command[-1]).parent) in writable,
             what="has no readinessProbe by a file that its program can write")
        need(self.facts.says_ready, what="its client's log no longer says when it is ready")

    def asks_gateways(self, owner, container):
        """Checks that gateways here answer this worker, and that its NATS user reaches their subjects and no others."""
        need = functools.partial(self.need, document=owner)
        gateways = [one for one in self.owners for container_ in one["spec"]["template"]["spec"]["containers"]
                    if serves_others(container_.get("args", []))]
        if not need(gateways, what="asks gateways, and there is none"):
            return
        settings, rights = self.settings[called(owner)], self.facts.rights
        references = {variable["name"]: variable["valueFrom"]["secretKeyRef"] for variable in container.get("env", [])
                      if "secretKeyRef" in variable.get("valueFrom", {})}
        url = references.get("NATS_URL")
        if not need(url, what="NATS_URL comes from no Secret"):
            return
        user = urlsplit(self.examples.get(url["name"], {}).get(url["key"], "")).username
        self.check_.inbox(f"{self.name}: {called(owner)}", settings.get("NATS_INBOX_PREFIX"), user)
        for gateway in gateways:
            prefix = self.settings[called(gateway)].get("TENURE_SUBJECT_PREFIX", "jobs")
            own = f"tenure.{prefix}.w.{settings.get('QUEUE')}."
            for of, wanted in (("publish", {f"{own}*"}), ("subscribe", {f"{own}to.*", f"_INBOX_{user}.>"})):
                has = rights.get(user, {}).get(of, set())
                need(has == wanted, what=f"its NATS user {user} may {of} {sorted(has)}, not {sorted(wanted)}")
        need(rights.get(user, {}).get("answers"), what=f"its NATS user {user} may not confirm that it has got its jobs")

    def created(self):
        """Returns the queues whose consumers `tenure migrate` creates here."""
        return {queue for job in self.of("Job") for container in job["spec"]["template"]["spec"]["containers"]
                for queue in queues_created_by(container["args"])}

    def probes(self, owner, container, settings):
        need = functools.partial(self.need, document=owner)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        listens = urlsplit("//" + settings.get("TENURE_LISTEN", "")).port
        need(set(ports.values()) == {listens}, what=f"its ports are {ports}, and TENURE_LISTEN is {listens}")
        need(listens in self.facts.exposed, what=f"the image does not expose {listens}")
        for probe, path in PROBES.items():
            get = container.get(probe, {}).get("httpGet", {})
            if need(get, what=f"has no {probe}"):
                need(get["path"] in self.facts.routes, what=f"{probe} requests {get['path']}, which tenure does not answer")
                need(get["path"] == path, what=f"{probe} requests {get['path']}, not {path}")
                need(get["port"] in ports or get["port"] == listens, what=f"{probe} uses port {get['port']}")

    def target(self, document, reference):
        """Returns the queues of the worker that is scaled, how many jobs it runs at once, and whether it is tenure."""
        kind, name = reference.get("kind", "Deployment"), reference["name"]
        found = [one for one in self.of(kind) if one["metadata"]["name"] == name]
        if not self.need(found, document, f"there is no {kind} {name} to scale"):
            return [], "1", True
        self.need("replicas" not in found[0]["spec"], found[0], "sets replicas although an autoscaler scales it")
        container = found[0]["spec"]["template"]["spec"]["containers"][0]
        if is_foreign(container):
            settings = self.settings[called(found[0])]
            return [settings.get("QUEUE")], settings.get("SLOTS"), False
        arguments = container["args"]
        slots = arguments[arguments.index("--concurrency") + 1] if "--concurrency" in arguments else "1"
        return queues_of(arguments), slots, True

    def autoscaler(self, document):
        spec = document["spec"]
        served, slots, is_tenure = self.target(document, spec["scaleTargetRef"])
        none = "scales to none: no worker would publish jobs that fall due"
        self.need(spec.get("minReplicas", 1) >= 1 or not is_tenure, document, none)
        for metric in spec["metrics"]:
            of = metric["external"]["metric"]
            if self.need(of["name"] in self.facts.metrics, document, f"{of['name']} is no metric of docs/metrics.md"):
                labels = self.facts.metrics[of["name"]][0]
                chosen = of["selector"]["matchLabels"]
                self.need(set(chosen) <= labels, document, f"{of['name']} has only the labels {labels}")
                self.need(chosen.get("queue") in served, document, f"no worker here serves {chosen}")
            self.slots(document, metric["external"]["target"].get("averageValue"), slots)

    def scaled(self, document):
        spec = document["spec"]
        served, slots, is_tenure = self.target(document, spec["scaleTargetRef"])
        none = "scales to none: no worker would publish jobs that fall due"
        # Gateways publish for those behind them.
        self.need(spec.get("minReplicaCount", 0) >= 1 or not is_tenure, document, none)
        for trigger in spec["triggers"]:
            self.need(trigger["type"] == "nats-jetstream", document, f"{trigger['type']} is not checked")
            given = trigger["metadata"]
            unknown = set(given) - JETSTREAM_KEYS
            self.need(not unknown, document, f"the scaler knows no {unknown}")
            # For a missing stream or consumer, KEDA computes a wrong lag instead of an error.
            for one in map(called, self.owners):
                stream = self.settings.get(one, {}).get("TENURE_STREAM", self.facts.stream)
                self.need(given.get("stream") == stream, document, f"the stream is {stream}, to {one}")
            accounts = self.facts.accounts
            self.need(given.get("account") in accounts, document, f"the account is one of {accounts}")
            self.need(self.facts.consumer == "QUEUE", document, "a consumer no longer has the name of its queue")
            self.need(given.get("consumer") in served, document, "no worker here serves that consumer's queue")
            created = given.get("consumer") in self.created()
            self.need(created, document, f"`tenure migrate` does not create the consumer {given.get('consumer')}")
            self.slots(document, given.get("lagThreshold"), slots)

    def slots(self, document, threshold, slots):
        self.need(threshold == slots, document, f"counts {threshold} jobs per worker, but a worker runs {slots}")


def is_foreign(container):
    """Whether it runs a program of another language: tenure's images have an entrypoint, and need no command."""
    return "command" in container


def serves_others(arguments):
    """Whether it is a gateway."""
    return arguments[:1] == ["gateway"] or "--gateway" in arguments


def selects(selector, labels):
    """Whether a selector of labels matches."""
    def holds(one):
        value, values = labels.get(one["key"]), one.get("values", [])
        of = {"In": value in values, "NotIn": value not in values,
              "Exists": one["key"] in labels, "DoesNotExist": one["key"] not in labels}
        return of[one["operator"]]

    return (selector.get("matchLabels") or {}).items() <= labels.items() and all(
        holds(one) for one in selector.get("matchExpressions", []))


def called(document):
    return f"{document['kind']} {document['metadata']['name']}"


def queues_of(arguments):
    queues = []
    for argument in arguments[1:]:
        if argument.startswith("-"):
            break
        queues.append(argument.split("=")[0])
    return queues


def queues_created_by(arguments):
    """Returns the queues of `--queue a --queue b`, `--queue=a` or `--queue a,b`."""
    text = " ".join(arguments)
    return {queue for given in re.findall(r"(?<!\S)--queue[ =](\S+)", text) for queue in given.split(",")}


# Cached, because most documents are checked many times: in each kustomization, and for each mistake.
@functools.cache
def against_kubernetes(version, text):
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return error.message
    return None


@functools.cache
def hadolint(text):
    """Returns the linter's lines about a Dockerfile; `None` without the linter."""
    program = shutil.which("hadolint")
    if program is None:
        return None
    ran = subprocess.run([program, "--no-color", "-"], input=text, capture_output=True, text=True)
    return (ran.stdout + ran.stderr).splitlines() or ([] if ran.returncode == 0 else ["failed"])


# ---- rendering -----------------------------------------------------------------------------------------------------


@functools.cache
def renderer():
    """Finds kustomize 4.5 or later, by itself or within kubectl."""
    for command in (["kubectl", "kustomize"], ["kustomize", "build"]):
        if not shutil.which(command[0]):
            continue
        arguments = ["version"] if command[0] == "kustomize" else ["version", "--client", "-o", "json"]
        ran = subprocess.run([command[0], *arguments], capture_output=True, text=True)
        version = re.search(r'(?:kustomizeVersion": "|kustomize/|^)v(\d+)\.(\d+)', ran.stdout)
        if version and (int(version[1]), int(version[2])) >= (4, 5):
            return command
    raise Broken("neither kustomize 4.5 or later nor a kubectl that contains it was found; scripts/check-deploy installs it")


RENDERED = {}


def render(folder, base=None):
    """Returns the documents of a kustomization and its base. Renders the same files only once."""
    paths = [*folder.glob("*.yaml"), *(base.glob("*.yaml") if base else [])]
    key = tuple((path.name, re.sub(rb"\.\./\S*/base", b"base", path.read_bytes())) for path in sorted(paths))
    if key not in RENDERED:
        RENDERED[key] = run_renderer(folder)
    return RENDERED[key]


def run_renderer(folder):
    ran = subprocess.run([*renderer(), str(folder)], capture_output=True, text=True)
    if ran.returncode != 0:
        raise Broken(f"{folder.name} cannot be rendered: {ran.stderr.strip()[-500:]}")
    return [document for document in yaml.load_all(ran.stdout, Loader) if document]


def check(root, until=None):
    """Returns the errors below this folder, up to one that contains `until`."""
    try:
        found = Check(root, Facts(root), until)
        try:
            found.compose()
            found.dockerfile()
            found.kubernetes()
        except Found:
            pass
        return found.errors
    except (Broken, OSError, yaml.YAMLError) as error:
        return [str(error)]


# ---- self-test -----------------------------------------------------------------------------------------------------

BASE = "deploy/kubernetes/base/kustomization.yaml"
WORKER = "deploy/kubernetes/base/worker.yaml"
SERVE_YAML = "deploy/kubernetes/base/serve.yaml"
MIGRATE = "deploy/kubernetes/base/migrate.yaml"
KEDA = "deploy/kubernetes/overlays/keda/scaledobject.yaml"
KEDA_OVERLAY = "deploy/kubernetes/overlays/keda/kustomization.yaml"
NO_REPLICAS = "      - {op: remove, path: /spec/replicas}\n"
HPA = "deploy/kubernetes/overlays/hpa/hpa.yaml"
ADAPTER = "deploy/kubernetes/overlays/hpa/prometheus-adapter.yaml"
COMPOSE = "docker-compose.yml"
PYTHON = "deploy/kubernetes/overlays/python/python.yaml"
PYTHON_OVERLAY = "deploy/kubernetes/overlays/python/kustomization.yaml"
PYTHON_NETWORK = "deploy/kubernetes/overlays/python/network.yaml"
PYTHON_KEDA = "deploy/kubernetes/overlays/python/scaledobject.yaml"
CLIENT = "clients/python/src/tenure/_worker.py"
GATEWAY = "deploy/kubernetes/overlays/python/gateway.yaml"
QUEUE = "            - {name: QUEUE, value: embed}\n"
# File, text, its replacement, and the error that must follow.
MISTAKES = [
    (WORKER, "minReadySeconds: 5", "minReadySecond: 5", "minReadySecond"),
    (WORKER, "replicas: 3", "replicas: three", "replicas"),
    (WORKER, "path: /readyz", "path: /ready", "/ready, which tenure does not answer"),
    (WORKER, "path: /livez", "path: /readyz", "livenessProbe requests /readyz, not /livez"),
    (WORKER, "terminationGracePeriodSeconds: 90", "terminationGracePeriodSeconds: 30", "is killed after 30 s"),
    (WORKER, "limits: {memory: 256Mi}", "limits: {memory: 512Mi}", "is limited to 512Mi"),
    (WORKER, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "may write to its image"),
    (WORKER, "mountPath: /run/tenure}", "mountPath: /run/tenur}", "/run/tenure cannot be written to"),
    (WORKER, "value: _INBOX_worker", "value: _INBOX_admin", "the inbox prefix of NATS's user worker"),
    (WORKER, "image: tenure-exec", "image: tenure", "needs a shell"),
    (WORKER, "maxUnavailable: 0", "maxUnavailable: 1", "before its successor is ready"),
    (WORKER, "enableServiceLinks: false", "enableServiceLinks: true", "TENURE_…"),
    (BASE, "TENURE_LISTEN=0.0.0.0:9090", "TENURE_LISTN=0.0.0.0:9090", "TENURE_LISTN is not a setting"),
    (BASE, "- TENURE_RUNTIME_DIR=/run/tenure",
     "- TENURE_RUNTIME_DIR=/run/tenure\n      - TENURE_SHUTDOWN_GRACE=5min", "stopping may take 352 s"),
    (SERVE_YAML, "  selector: {app.kubernetes.io/part-of: tenure, app.kubernetes.io/component: serve}",
     "  selector: {app.kubernetes.io/component: dashboard}", "selects no pod"),
    (SERVE_YAML, "TENURE_SERVE_PASSWORD\n", "TENURE_SERVE_PASWORD\n", "TENURE_SERVE_PASWORD is not a setting"),
    (SERVE_YAML, "key: password", "key: passwort", "no tenure-serve/passwort"),
    ("deploy/kubernetes/base/accounts.yaml", "AccountToken: false", "AccountToken: true", "mounts a token"),
    (MIGRATE, "--queue, texts", "--queue, text", "`tenure migrate` does not name"),
    (MIGRATE, "--queue, texts", "texts", "serves texts, which `tenure migrate` does not name"),
    (MIGRATE, "--queue, texts", "--queue, text", "`tenure migrate` does not create the consumer texts"),
    ("deploy/kubernetes/base/network.yaml", "part-of: tenure}\n  policyTypes: [Ingress, Egress]",
     "part-of: tenur}\n  policyTypes: [Ingress, Egress]", "selects no pod"),
    ("deploy/kubernetes/secrets.example.yaml", "password: CHANGE-ME", "password: hunter2", "looks like a real secret"),
    (KEDA, "stream: JOBS", "stream: JOB", "the stream is JOBS"),
    (KEDA, "consumer: texts", "consumer: tenure-texts", "no worker here serves that consumer's queue"),
    # Only the worker changes, or only the migration.
    (KEDA_OVERLAY, NO_REPLICAS,
     NO_REPLICAS + "      - {op: replace, path: /spec/template/spec/containers/0/args/1, value: mail}\n",
     "no worker here serves that consumer's queue"),
    (KEDA_OVERLAY, NO_REPLICAS,
     NO_REPLICAS + "  - target: {kind: Job, name: tenure-migrate}\n"
     "    patch: |-\n      - {op: replace, path: /spec/template/spec/containers/0/args/2, value: mail}\n",
     "`tenure migrate` does not create the consumer texts"),
    (BASE, "- TENURE_RUNTIME_DIR=/run/tenure",
     "- TENURE_RUNTIME_DIR=/run/tenure\n      - TENURE_STREAM=WORK", "the stream is WORK, to Deployment tenure-worker"),
    (MIGRATE, "          envFrom:", "            - {name: TENURE_STREAM, value: WORK}\n          envFrom:",
     "the stream is WORK, to Job tenure-migrate"),
    (KEDA, "pollingInterval:", "pollInterval:", "pollInterval"),
    (KEDA, "minReplicaCount: 1", "minReplicaCount: 0", "scales to none"),
    (KEDA, "stabilizationWindowSeconds", "stabilisationWindowSeconds", "stabilisationWindowSeconds"),
    (KEDA, 'lagThreshold: "4"', 'lagThreshold: "16"', "a worker runs 4"),
    (HPA, "name: tenure_queue_jobs", "name: tenure_queue_depth", "tenure_queue_depth is no metric"),
    (ADAPTER, "due|processing", "due|running", "state is never one of due|running"),
    (COMPOSE, "stop_grace_period", "stop_grace", "stop_grace"),
    (COMPOSE, "stop_grace_period: 90s", "stop_grace_period: 45s", "stopping may take 77 s"),
    (COMPOSE, "TENURE_LISTEN: 0.0.0.0:9090", "TENURE_LISTENS: 0.0.0.0:9090", "TENURE_LISTENS is not a setting"),
    (COMPOSE, "GET /readyz", "GET /healthz", "which tenure does not answer"),
    (COMPOSE, "@postgres:5432", "@postgresql:5432", "DATABASE_URL names no service"),
    (COMPOSE, '"127.0.0.1:9090:9090"', '"9090:9090"', "open to the network"),
    ("Dockerfile", "USER 65532:65532", "USER tenure", "is no number"),
    ("Dockerfile", "FROM debian:bookworm-slim", "FROM debian:latest", "DL3007"),
    ("docs/kubernetes.md", "value: [migrate, --queue, mail]", "value: [migrate]", "which its Job does not name"),
    ("docs/kubernetes.md", " --from-literal=password=…", "", "creates tenure-serve with the keys"),
    ("docs/kubernetes.md", "/spec/template/spec/containers/0/args\n", "/spec/args/0\n", "cannot be rendered"),
    # A worker in another language reaches Postgres, or could.
    (PYTHON, "{name: tenure-python, key: nats_url}", "{name: tenure-worker, key: nats_url}", "not only a URL of NATS"),
    (PYTHON, QUEUE, QUEUE + "            - {name: DATABASE_URL, value: x}\n", "but needs no Postgres"),
    ("deploy/kubernetes/secrets.example.yaml", "  nats_url: nats://embed:",
     "  database_url: postgres://worker:CHANGE-ME@postgres.example/tenure\n  nats_url: nats://embed:",
     "not only a URL of NATS"),
    (PYTHON_OVERLAY, "operator: NotIn, values: [python]", "operator: NotIn, values: [pyton]",
     "Deployment tenure-python: a NetworkPolicy lets it reach Postgres"),
    (PYTHON_OVERLAY, "operator: NotIn, values: [python]", "operator: In, values: [python]",
     "no NetworkPolicy limits its egress"),
    (PYTHON_NETWORK, "port: 4222", "port: 4223", "no NetworkPolicy lets it reach NATS"),
    ("deploy/kubernetes/base/network.yaml", "port: 5432", "port: 5433", "no NetworkPolicy lets it reach Postgres"),
    # It is killed half way, or its probe proves nothing.
    (PYTHON, "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 40", "stopping may take 50 s"),
    (PYTHON, 'GRACE, value: "20"', 'GRACE, value: "60"', "stopping may take 90 s"),
    (PYTHON, "readinessProbe:", "startupProbe:", "has no readinessProbe by a file"),
    (PYTHON, "command: [test, -e, /tmp/ready]", "command: [test, -e, /ready]", "by a file that its program can write"),
    # Only one of the places that name its queue changes, or its slots.
    (PYTHON, "QUEUE, value: embed", "QUEUE, value: mail", "serves mail, which `tenure migrate` does not name"),
    (PYTHON, "QUEUE, value: embed", "QUEUE, value: texts", "may publish ['tenure.jobs.w.embed.*'], not"),
    (PYTHON, "QUEUE, value: embed", "QUEUE, value: texts", "no worker here serves that consumer's queue"),
    (PYTHON, QUEUE, "", "lacks ['QUEUE']"),
    (PYTHON_OVERLAY, "value: embed", "value: mail", "`tenure migrate` does not create the consumer embed"),
    (PYTHON_KEDA, "consumer: embed", "consumer: texts", "no worker here serves that consumer's queue"),
    (PYTHON, 'SLOTS, value: "4"', 'SLOTS, value: "8"', "counts 4 jobs per worker, but a worker runs 8"),
    (PYTHON, 'SLOTS, value: "4"', "SLOTS, value: many", "SLOTS is many, not a number"),
    (PYTHON, "value: _INBOX_embed", "value: _INBOX_worker", "the inbox prefix of NATS's user embed"),
    (PYTHON, "name: GRACE,", "name: TENURE_SHUTDOWN_GRACE,", "which its client does not read"),
    (PYTHON_KEDA, "    name: tenure-python\n  polling", "    name: tenure-worker\n  polling", "scales to none"),
    (PYTHON_OVERLAY, 'newTag: "1"', "newTag: latest", "has no version"),
    # Its gateways.
    (PYTHON_OVERLAY, "  - gateway.yaml\n", "", "asks gateways, and there is none"),
    (PYTHON_OVERLAY, "newTag: 0.2.0", "newTag: 0.0.9", "tenure's images have the versions"),
    (PYTHON_OVERLAY, "values/-, value: gateway", "values/-, value: gate", "no NetworkPolicy lets Prometheus in"),
    (GATEWAY, "args: [gateway]", "args: [gateway, embed]", "`tenure gateway` has no arguments"),
    (GATEWAY, "terminationGracePeriodSeconds: 75", "terminationGracePeriodSeconds: 45", "stopping may take 55 s"),
    (GATEWAY, "mountPath: /run/tenure}", "mountPath: /run/tenur}", "/run/tenure cannot be written to"),
    (GATEWAY, "path: /readyz", "path: /livez", "readinessProbe requests /livez, not /readyz"),
    (GATEWAY, "          envFrom:", "            - {name: TENURE_SUBJECT_PREFIX, value: work}\n          envFrom:",
     "not ['tenure.work.w.embed.*']"),
    # The NATS users.
    ("nats/server.conf", 'expires: "1m"', 'expires: "5s"', "may answer a request for 5 s, but a request may wait"),
    ("nats/server.conf", '["tenure.jobs.w.embed.*"]', '["tenure.jobs.w.>"]', "may publish ['tenure.jobs.w.>'], not"),
    ("nats/server.conf", '"tenure.jobs.w.embed.to.*", ', "", "may subscribe ['_INBOX_embed.>'], not"),
    ("nats/server.conf", '      #     allow_responses: { max: 1, expires: "5s" }\n', "", "may not confirm that it has"),
    # The program that the page shows.
    ("docs/kubernetes.md", 'env["SLOTS"]', 'env["WORKER_SLOTS"]', "its worker.py reads ['GRACE'"),
    ("docs/kubernetes.md", "slots=int(", "slots=int((", "its worker.py is no Python"),
    ("docs/kubernetes.md", 'Path("/tmp/ready")', 'Path("/tmp/up")', "its worker.py does not write /tmp/ready"),
    ("docs/kubernetes.md", "USER 65532:65532", "USER 1000:1000", "its Dockerfile has the users"),
    ("docs/kubernetes.md", "FROM python:3.13-slim", "FROM python:latest", "its Dockerfile: -:1 DL3007"),
    ("docs/kubernetes.md", 'CMD ["python", "worker.py"]', 'CMD ["python", "main.py"]', "its Dockerfile does not start"),
    ("docs/kubernetes.md", "/wheels/tenure-0.2.0-py3", "/wheels/tenure-0.1.9-py3", "it names the wheels"),
    ("docs/kubernetes.md", "tenure-python --from-literal=nats_url=", "tenure-python --from-literal=url=",
     "creates tenure-python with the keys"),
    # The code changes, but the manifests do not.
    (CLIENT, "self._until_idle(15.0)", "self._until_idle(45.0)", "stopping may take 80 s"),
    (CLIENT, '"event": "ready"', '"event": "hello"', "no longer says when it is ready"),
    ("clients/python/pyproject.toml", 'version = "0.2.0"', 'version = "0.3.0"', "but the client's is tenure-0.3.0"),
    ("src/gateway/mod.rs", "const WAIT_MAX: Duration = Duration::from_secs(30)",
     "const WAIT_MAX: Duration = Duration::from_secs(90)", "a request may wait for 95 s"),
    ("src/observe/http.rs", '"/startupz"', '"/started"', "/startupz, which tenure does not answer"),
    ("src/config/timing.rs", "shutdown_grace: Duration::from_secs(25)", "shutdown_grace: Duration::from_secs(60)",
     "stopping may take 112 s"),
    ("docs/metrics.md", "| `tenure_queue_jobs` |", "| `tenure_jobs_live` |", "tenure_queue_jobs is no metric"),
    ("nats/server.conf", "  TENURE {", "  JOBS {", "the account is one of"),
]
NEEDED = ["clients/python/pyproject.toml", "clients/python/src", "deploy", "docker-compose.yml", "Dockerfile", "docs",
          "nats", "postgres", "src", "tenure-cli"]


def self_test(root):
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in NEEDED:
            source = root / name
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
        errors = check(folder)
        if errors:
            return ["without a mistake: " + error for error in errors]
        for path, before, after, expected in MISTAKES:
            text = (folder / path).read_text(encoding="utf-8")
            if before not in text:
                missed.append(f"{path}: {before!r} does not exist any more")
                continue
            (folder / path).write_text(text.replace(before, after), encoding="utf-8")
            errors = check(folder, until=expected)
            if not any(expected in error for error in errors):
                missed.append(f"{path}: {after!r} was not refused with {expected!r}, but with {errors[:3]}")
            (folder / path).write_text(text, encoding="utf-8")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--self-test", action="store_true", help="break a copy in many ways, and expect to find each")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    # Each schema is read many times.
    kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
    errors = self_test(root) if arguments.self_test else check(root)
    for error in errors:
        print(f"check-deploy: {error}", file=sys.stderr)
    if not errors:
        done = "the manifests, docker-compose.yml and the Dockerfile are correct"
        if arguments.self_test:
            done = f"found each of {len(MISTAKES)} mistakes"
        print(f"check-deploy: {done} ({' '.join(renderer())}; Kubernetes {', '.join(KUBERNETES)})")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
