#!/bin/busybox sh
# The first process of a tiny system: makes it one, says what it found, and then does what
# `hoist.then=` of the kernel's words says: `poweroff`, `reboot`, or, without it, a shell.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
[ -c /dev/null ] || $b mount -t devtmpfs devtmpfs /dev
$b mount -t tmpfs -o mode=0755 tmpfs /run
$b mkdir -p /run/bin && $b --install -s /run/bin
export PATH=/run/bin:/bin:/sbin HOME=/root TERM=linux
say() { echo "hoist-tiny: $*"; }
word() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p" | tail -n 1; }

for module in /lib/hoist/modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || say "cannot load $module"; }
done
mount -o remount,rw / 2>/dev/null
if [ -s /etc/fstab ]; then
    awk '$2 ~ "^/" {print $2}' /etc/fstab | xargs mkdir -p
    mount -a || say "cannot mount everything of /etc/fstab"
fi
[ -s /etc/hostname ] && hostname -F /etc/hostname

say "this is $(hostname), root=$(word root)"
say "mounted: $(awk '$2 !~ "^/(proc|sys|dev|run)" {printf "%s ", $2}' /proc/mounts)"
if drive=$(findfs LABEL=CONFIG-2 2>/dev/null || findfs LABEL=config-2 2>/dev/null); then
    mkdir -p /run/config && mount -o ro "$drive" /run/config || say "cannot mount $drive"
    (cd /run/config && find . -type f | sort) | while read -r file; do
        say "config drive has ${file#./}: $(head -c 200 "/run/config/$file" | tr '\n' ' ')"
    done
else
    say "no config drive"
fi
say "up"

case $(word hoist.then) in
poweroff) sync; mount -o remount,ro / 2>/dev/null; poweroff -f ;;
reboot) sync; mount -o remount,ro / 2>/dev/null; reboot -f ;;
esac
while :; do
    [ -s /etc/motd ] && cat /etc/motd
    setsid cttyhack sh -l
    say "the shell has ended; here is another"
    sleep 1
done
