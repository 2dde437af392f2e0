"""Compares answers of the API with its document.

Reads from standard input `{"document", "answers": [{"method", "path", "status", "headers", "body"}], "events": [..]}`.
Prints a line for each answer that is not as its document says, and exits with 1 if there is one.
"""

import json
import re
import sys

from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate

given = json.load(sys.stdin)
document = given["document"]
validate(document)
base = document["servers"][0]["url"]
formats = FormatChecker()


@formats.checks("date-time")
def is_time(value):
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
    return not isinstance(value, str) or re.fullmatch(pattern, value) is not None


def strict(schema):
    """The same schema, by which an object has no other properties than those that it names."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        schema["additionalProperties"] = False
    return schema


root = strict(document)
codes = document["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["x-known"]


def errors(schema, value):
    whole = {**schema, "components": root["components"]}
    found = Draft202012Validator(whole, format_checker=formats).iter_errors(value)
    return [f"{error.json_path}: {error.message}" for error in found]


def resolved(part):
    while "$ref" in part:
        at = root
        for name in part["$ref"].removeprefix("#/").split("/"):
            at = at[name]
        part = at
    return part


def described(answer):
    """The response as the document has it. An address or a method that it lacks has an error that fits."""
    path = answer["path"].split("?")[0].removeprefix(base)
    for template, item in root["paths"].items():
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path):
            operation = item.get(answer["method"].lower())
            if operation is None:
                break
            response = operation["responses"].get(str(answer["status"]))
            return resolved(response) if response else None
    names = {401: "Unauthenticated", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 429: "TooMany"}
    name = names.get(answer["status"])
    return root["components"]["responses"][name] if name else None


wrong = []
for answer in given["answers"]:
    is_ = f"{answer['method']} {answer['path']}: {answer['status']} {answer['body'][:300]}"
    headers = {name.lower(): value for name, value in answer["headers"].items()}
    response = described(answer)
    if response is None:
        wrong.append(f"{is_}: the document has no such answer")
        continue
    for name in response.get("headers", {}):
        # An unlimited answer or a last page has no such header.
        if name.lower() not in headers and name not in ("Link",):
            wrong.append(f"{is_}: no header {name}")
    if "cache-control" not in headers or headers.get("x-content-type-options") != "nosniff":
        wrong.append(f"{is_}: no headers for browsers")
    content = response.get("content")
    if content is None:
        if answer["body"]:
            wrong.append(f"{is_}: a body")
        continue
    kind = headers.get("content-type", "")
    if kind not in content:
        wrong.append(f"{is_}: of type {kind!r}, not {list(content)}")
        continue
    if kind != "application/json":
        continue
    body = json.loads(answer["body"])
    wrong.extend(f"{is_}: {error}" for error in errors(content[kind]["schema"], body))
    if answer["status"] >= 400 and body["error"]["code"] not in codes:
        wrong.append(f"{is_}: the document does not know the code")
    if answer["status"] >= 400 and f"`{body['error']['code']}`" not in response["description"]:
        wrong.append(f"{is_}: the document does not say what the code means here")
for event in given["events"]:
    wrong.extend(f"{event}: {error}" for error in errors({"$ref": "#/components/schemas/JobUpdate"}, event))
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
