#!/usr/bin/env python3
"""The action NAME: makes sure that a file is there.

docs/plugins.md of hoist describes the protocol. Results go to standard output, everything else to
standard error.
"""

import json
import os
import sys

DESCRIPTION = {
    "proto": [1],
    "name": "NAME",
    "version": "0.1",
    "about": "makes sure that a file is there",
    "can": ["verify", "check", "undo"],
    # Tried by `hoist plugin check`, in an empty directory.
    "example": {"path": "example"},
}


def say(kind, **fields):
    print(json.dumps({"t": kind, **fields}), flush=True)


def path(request):
    return request["step"]["input"]["path"]


def describe(_):
    return {"description": DESCRIPTION}


def validate(request):
    value = request["step"]["input"]
    if isinstance(value, dict) and list(value) == ["path"] and isinstance(value["path"], str) and value["path"]:
        return {"diagnostics": []}
    message = "the input must be an object with a path and nothing else"
    return {"diagnostics": [{"message": message, "hint": '{"path": "/etc/example"}'}]}


def run(request):
    # It may be asked twice: only what is not done yet is done.
    if os.path.exists(path(request)):
        return {"changed": False, "receipt": {"made": False}}
    open(path(request), "xb").close()
    say("log", level="info", msg="made " + path(request))
    return {"changed": True, "receipt": {"made": True}}


def verify(request):
    if os.path.exists(path(request)):
        return {"holds": True}
    return {"holds": False, "reason": "the file is not there"}


def undo(request):
    # Without a receipt the run was cut short: a file that is there may be its own or not.
    if request["receipt"] is None:
        return {"undone": not os.path.exists(path(request))}
    if request["receipt"]["made"] and os.path.exists(path(request)):
        os.unlink(path(request))
    return {"undone": True}


VERBS = {"describe": describe, "validate": validate, "run": run, "verify": verify, "undo": undo}


def main():
    request = json.load(sys.stdin)
    verb = VERBS.get(request["verb"])
    if verb is None:
        return say("result", ok=False, error="unsupported")
    try:
        answer = verb(request)
    except OSError as error:
        return say("result", ok=False, error=f"{error.filename}: {error.strerror}")
    say("result", ok=True, **answer)


main()
