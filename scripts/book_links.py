#!/usr/bin/env python3
"""A preprocessor for mdBook: links of the guide that leave docs/ lead to the repository."""

import json
import re
import sys

OUT_OF_DOCS = re.compile(r"\]\(\.\./([^)\s]+)\)")


def walk(value, repository):
    if isinstance(value, list):
        for item in value:
            walk(item, repository)
    elif isinstance(value, dict):
        if isinstance(value.get("content"), str):
            value["content"] = OUT_OF_DOCS.sub(rf"]({repository}/blob/main/\1)", value["content"])
        for item in value.values():
            walk(item, repository)


# mdBook first asks whether this supports a renderer: it supports all.
if sys.argv[1:2] != ["supports"]:
    context, book = json.load(sys.stdin)
    walk(book, context["config"]["output"]["html"]["git-repository-url"])
    json.dump(book, sys.stdout)
