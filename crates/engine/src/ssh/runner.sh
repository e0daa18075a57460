# Runs on a machine that has a shell and nothing of ours. What to do comes as lines on its input: a
# name and a value in base64, and `end`. No value becomes part of a command.
set -u
umask 077
trap "" HUP
base=$HOME/.hoist/attempts
memory=/dev/shm
[ -d "$memory" ] && [ -w "$memory" ] || memory=$base
mkdir -p "$base" || exit 90
new=$base/.new.$$
payload=$memory/hoist-payload.$$
trap "rm -rf \"$new\"" EXIT
mkdir "$new" || exit 90
# There are secrets in it: it has no name any more when they are, whatever ends this shell.
exec 8> "$payload" 9< "$payload" || exit 90
rm -f "$payload"
cat >&8
exec 8>&-
payload=/proc/$$/fd/9
[ "$(tail -n 1 "$payload")" = end ] || exit 91

value() { sed -n "s/^$1 //p" "$payload" | head -n 1 | base64 -d; }
names() { sed -n "s/^$1 \([A-Za-z_][A-Za-z0-9_]*\) .*/\1/p" "$payload"; }

verb=$(value verb)
id=$(value id)
case $id in
"" | .* | *[!A-Za-z0-9._-]*) exit 92 ;;
esac
dir=$base/$id
secrets=$memory/hoist-$id
boot=$(cat /proc/sys/kernel/random/boot_id)

start() {
    [ -e "$dir" ] && return
    find "$base" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + 2> /dev/null
    for name in $(names env); do value "env $name" > "$new/env.$name"; done
    for name in $(names file); do value "file $name" > "$new/file.$name"; done
    for name in attempt cwd text timeout; do value $name > "$new/$name"; done
    echo "$boot" > "$new/boot"
    cat > "$new/run" <<"RUN"
dir=$1
secrets=$2
# Only now it can be told from others by its environment.
echo $$ > "$dir/starter.new"
mv "$dir/starter.new" "$dir/starter"
for file in "$dir"/env.*; do
    [ -e "$file" ] || continue
    text=$(cat "$file"; echo x)
    export "${file##*/env.}=${text%x}"
done
for file in "$dir"/file.*; do
    [ -e "$file" ] && export "${file##*/file.}=$file"
done
for file in "$secrets"/*; do
    [ -e "$file" ] && export "${file##*/}=$file"
done
mkfifo "$dir/fifo"
{ head -c 8388608 > "$dir/output"; cat > /dev/null; } < "$dir/fifo" &
reader=$!
where=$(cat "$dir/cwd")
cd /
if cd "${where:-/}" 2> /dev/null; then
    umask 022
    timeout -k 10 "$(cat "$dir/timeout")" /bin/sh "$dir/text" < /dev/null > "$dir/fifo" 2>&1 &
    child=$!
    umask 077
    echo $child > "$dir/child"
    wait $child
    code=$?
else
    echo "there is no directory $where" > "$dir/fifo"
    code=1
fi
turns=0
while [ $turns -lt 10 ] && kill -0 $reader 2> /dev/null; do
    sleep 0.1
    turns=$((turns + 1))
done
rm -rf "$secrets"
echo $code > "$dir/result.new"
mv "$dir/result.new" "$dir/result"
RUN
    # From here on the attempt is begun, and is not begun again.
    mv -T "$new" "$dir" 2> /dev/null || return
    for name in $(names secret); do
        mkdir -p "$secrets"
        value "secret $name" > "$secrets/$name"
    done
    HOIST_ATTEMPT=$(cat "$dir/attempt") setsid /bin/sh "$dir/run" "$dir" "$secrets" < /dev/null > /dev/null 2>&1 9<&- &
}

alive() {
    [ "$(cat "$dir/boot" 2> /dev/null)" = "$boot" ] || return 1
    naps=0
    while [ ! -e "$dir/starter" ] && [ $naps -lt 50 ]; do
        sleep 0.2
        naps=$((naps + 1))
    done
    starter=$(cat "$dir/starter" 2> /dev/null) || return 1
    tr "\0" "\n" < "/proc/$starter/environ" 2> /dev/null | grep -qxF "HOIST_ATTEMPT=$(cat "$dir/attempt")"
}

state() {
    if [ ! -e "$dir" ]; then
        echo "state never"
    elif [ -e "$dir/result" ]; then
        echo "state ended $(cat "$dir/result")"
        base64 < "$dir/output"
    elif alive; then
        echo "state running"
    elif [ -e "$dir/result" ]; then
        state
    else
        echo "state gone"
    fi
}

wait_for_end() {
    turns=$(($(value wait) * 5))
    while [ $turns -gt 0 ] && [ ! -e "$dir/result" ] && [ -e "$dir" ] && alive; do
        sleep 0.2
        turns=$((turns - 1))
    done
}

echo "hoist 1"
case $verb in
start)
    start
    wait_for_end
    ;;
ask) wait_for_end ;;
kill)
    child=$(cat "$dir/child" 2> /dev/null)
    signal=$(value signal)
    [ -n "$child" ] && [ ! -e "$dir/result" ] && alive && kill -s "$signal" -- "-$child" 2> /dev/null
    wait_for_end
    ;;
forget)
    rm -rf "$dir" "$secrets"
    ;;
*) exit 93 ;;
esac
state
