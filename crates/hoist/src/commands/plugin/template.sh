#!/bin/sh
# The action NAME: makes sure that a file is there. docs/plugins.md of hoist describes the protocol.
# The request is one line of JSON without spaces between its parts.

IFS= read -r request

# A result; the argument is what belongs to the verb. Everything else goes to standard error.
ok() { printf '{"t":"result","ok":true%s}\n' "$1"; exit 0; }
no() { printf '{"t":"result","ok":false,"error":"%s"}\n' "$1"; exit 0; }

# The input, if it is {"path": "…"} and nothing else.
path=$(printf '%s\n' "$request" | sed -nE 's/.*"input":\{"path":"([^"\\]+)"\}.*/\1/p')

case $(printf '%s\n' "$request" | sed -nE 's/.*"verb":"([a-z_]+)".*/\1/p') in
describe)
    # The example is tried by `hoist plugin check`, in an empty directory.
    ok ',"description":{"proto":[1],"name":"NAME","version":"0.1","about":"makes sure that a file is there","can":["verify","check","undo"],"example":{"path":"example"}}'
    ;;
validate)
    [ "$path" ] && ok ',"diagnostics":[]'
    ok ',"diagnostics":[{"message":"the input must be an object with a path and nothing else","hint":"{\"path\": \"/etc/example\"}"}]'
    ;;
run)
    # It may be asked twice: only what is not done yet is done.
    [ -e "$path" ] && ok ',"changed":false,"receipt":{"made":false}'
    : >"$path" || no "cannot make the file"
    ok ',"changed":true,"receipt":{"made":true}'
    ;;
verify)
    [ -e "$path" ] && ok ',"holds":true'
    ok ',"holds":false,"reason":"the file is not there"'
    ;;
undo)
    case $request in
    *'"receipt":{"made":true}'*) rm -f "$path" || no "cannot remove the file" ;;
    *'"receipt":{"made":false}'*) ;;
    # Without a receipt the run was cut short: a file that is there may be its own or not.
    *) [ -e "$path" ] && ok ',"undone":false' ;;
    esac
    ok ',"undone":true'
    ;;
*) no unsupported ;;
esac
