# Runs on a machine that has a shell and nothing of ours. What to do comes as lines on its input: a
# name and a value in base64, and `end`. No value becomes part of a command, and no name that other
# users of the machine could foresee is opened: attempts are below a directory that only this user can
# enter, secrets below one that mktemp made, and processes get both as their working directory or
# from a file, never as an argument.
set -u
umask 077
trap "" HUP

# Makes a directory, or takes one that was made so before: no link, of this user, closed to others.
private() {
    mkdir -m 0700 "$1" 2> /dev/null
    [ ! -L "$1" ] && [ -d "$1" ] && [ -O "$1" ] && [ $((0$(stat -c %a "$1") & 077)) = 0 ] && return
    echo "$1 is not a directory that only $(id -un) can enter; remove it" >&2
    exit 90
}

base=$HOME/.hoist/attempts
private "$HOME/.hoist"
private "$base"
cd "$base" || exit 90
memory=/dev/shm
[ -d "$memory" ] && [ -w "$memory" ] || memory=$base
new=
place=$(mktemp -d "$memory/.hoist.XXXXXXXXXX") || exit 90
trap "rm -rf \"\$new\" \"\$place\"" EXIT
new=$(mktemp -d "$base/.new.XXXXXXXXXX") || exit 90
# There are secrets in it: it has no name any more when they are, whatever ends this shell.
exec 8> "$place/payload" 9< "$place/payload" || exit 90
rm -f "$place/payload"
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
boot=$(cat /proc/sys/kernel/random/boot_id)

start() {
    [ -e "$dir" ] && return
    find . -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + 2> /dev/null
    for name in $(names env); do value "env $name" > "$new/env.$name"; done
    for name in $(names file); do value "file $name" > "$new/file.$name"; done
    for name in attempt cwd text timeout; do value $name > "$new/$name"; done
    for name in $(names secret); do value "secret $name" > "$place/$name"; done
    echo "HOIST_ATTEMPT=$(value attempt)" > "$new/mark"
    echo "$place" > "$new/place"
    echo "$boot" > "$new/boot"
    cat > "$new/run" <<"RUN"
dir=$(pwd -P)
read -r place < place
# Only now it can be told from others by its environment.
echo $$ > starter.new
mv starter.new starter
for file in env.*; do
    [ -e "$file" ] || continue
    text=$(cat "$file"; echo x)
    export "${file#env.}=${text%x}"
done
for file in file.*; do
    [ -e "$file" ] && export "${file#file.}=$dir/$file"
done
for file in "$place"/*; do
    [ -e "$file" ] && export "${file##*/}=$file"
done
mkfifo fifo
{ head -c 8388608 > output; cat > /dev/null; } < fifo &
reader=$!
where=$(cat cwd)
limit=$(cat timeout)
cd /
if cd "${where:-/}" 2> /dev/null; then
    umask 022
    # The text comes by a descriptor, which it closes itself, and not by a name.
    timeout -k 10 "$limit" /bin/sh /proc/self/fd/7 < /dev/null > "$dir/fifo" 2>&1 7< "$dir/text" &
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
rm -rf "$place"
cd "$dir" || exit
echo $code > result.new
mv result.new result
RUN
    # From here on the attempt is begun, and is not begun again.
    mv -T "$new" "$dir" 2> /dev/null && cd "$dir" || return
    # What starts here removes it.
    place=
    HOIST_ATTEMPT=$(value attempt) setsid /bin/sh run < /dev/null > /dev/null 2>&1 9<&- &
}

# Here the working directory is the one of the attempt, if it was begun.
alive() {
    begun_at=
    [ -e boot ] && read -r begun_at < boot
    [ "$begun_at" = "$boot" ] || return 1
    naps=0
    while [ ! -e starter ] && [ $naps -lt 50 ]; do
        sleep 0.2
        naps=$((naps + 1))
    done
    [ -e starter ] && read -r starter < starter || return 1
    tr "\0" "\n" < "/proc/$starter/environ" 2> /dev/null | grep -qxFf mark
}

state() {
    if [ ! -e "$dir" ]; then
        echo "state never"
    elif [ -e result ]; then
        echo "state ended $(cat result)"
        base64 < output
    elif alive; then
        echo "state running"
    elif [ -e result ]; then
        state
    else
        echo "state gone"
    fi
}

wait_for_end() {
    turns=$(($(value wait) * 5))
    while [ $turns -gt 0 ] && [ ! -e result ] && [ -e "$dir" ] && alive; do
        sleep 0.2
        turns=$((turns - 1))
    done
}

echo "hoist 1"
[ "$verb" != start ] || start
[ ! -e "$dir" ] || cd "$dir" || exit 92
case $verb in
start | ask) wait_for_end ;;
kill)
    child=
    [ -e child ] && read -r child < child
    signal=$(value signal)
    [ -n "$child" ] && [ ! -e result ] && alive && kill -s "$signal" -- "-$child" 2> /dev/null
    wait_for_end
    ;;
forget)
    [ -e place ] && read -r secrets < place && rm -rf "$secrets"
    cd "$base" && mv -T "$dir" "$new/forgotten" 2> /dev/null
    ;;
*) exit 93 ;;
esac
state
