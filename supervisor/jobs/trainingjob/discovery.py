"""The script in a launcher's container that lists the hosts, and the command that installs it.

The operator writes `hostfile` beside it, the supervisor `excluded_hosts`: each file has one writer. In a launcher of
our own operator, a volume shows both lists, and nothing has to be written by a command.
"""

from supervisor.jobs.kind import HostDiscovery

LIVE = "/var/run/trainingjob"
"""Where a launcher of our own operator is shown its present list of hosts, and the hosts to leave out."""

DISCOVERY = r"""#!/bin/sh
# Put here by the job supervisor: prints the operator's list without the hosts that will be reclaimed.
# Never fails, as Horovod would end the job, and prints what was good last where something cannot be read.
edl=${EDL:-/etc/edl}
port=${EDL_PORT:-22}
live=${EDL_LIVE:-/var/run/trainingjob}
admitted=$edl/admitted_hosts
nl='
'

# In $lines, the lines of all these files that can be read, each between two line ends.
read_lines() {
  lines=$nl
  for file in "$@"; do
    [ -r "$file" ] && while IFS= read -r line || [ -n "$line" ]; do
      [ -n "$line" ] && lines=$lines$line$nl
    done <"$file"
  done 2>/dev/null
}

# Whether a host takes connections: one that is listed and does not kills every rank after 30 s.
answers() {
  [ "$port" -eq 0 ] && return 0
  if command -v bash >/dev/null && command -v timeout >/dev/null; then
    timeout 2 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$1" "$port"
  elif command -v python3 >/dev/null; then
    python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)' "$1" "$port"
  elif command -v python >/dev/null; then
    python -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)' "$1" "$port"
  elif command -v nc >/dev/null; then
    nc -z -w 2 "$1" "$port"
  fi
}

# A list that a volume shows becomes the list once: another operator may write a newer one to the file.
shown=$(cat "$live/hostfile" 2>/dev/null)
if [ -n "$shown" ] && [ "$shown" != "$(cat "$edl/shown_hostfile" 2>/dev/null)" ]; then
  for file in hostfile shown_hostfile; do
    printf '%s\n' "$shown" >"$edl/$file.$$" && mv -f "$edl/$file.$$" "$edl/$file"
  done
fi 2>/dev/null

read_lines "$edl/excluded_hosts" "${KUBEAI_DIR:-/var/run/kubeai}/excluded-hosts" "$live/excluded-hosts"
excluded=$lines
read_lines "$admitted"
last=$lines
read_lines "$edl/hostfile"
[ "$lines" = "$nl" ] && lines=$last

kept=
for entry in $lines; do
  case $excluded in *"$nl${entry%%:*}$nl"*) ;; *) kept=$kept$entry$nl ;; esac
done
# The first list may be in use already, and is taken as it is: asking is for those that come later.
[ -r "$admitted" ] || last=$nl$kept

# Hosts join only some time after others have left: a worker that joins before the others have formed their new ring
# waits for their states, which they do not send after a leave (Horovod issue 3494).
now=$(date +%s 2>/dev/null)
held=
for entry in $last; do
  case $nl$kept in *"$nl${entry%%:*}:"* | *"$nl${entry%%:*}$nl"*) ;; *) held=yes ;; esac
done
[ -n "$held" ] && { printf '%s\n' "$now" >"$edl/left_at"; } 2>/dev/null
[ -r "$edl/left_at" ] && read -r left_at <"$edl/left_at" && [ -n "$now" ] && [ -n "$left_at" ] &&
  [ "$now" -ge "$left_at" ] && [ $((now - left_at)) -lt "${EDL_JOIN_DELAY:-5}" ] && held=yes

new=$([ -n "$held" ] || for entry in $kept; do
  case $last in
    *"$nl$entry$nl"*) ;;
    *) (answers "${entry%%:*}" </dev/null >/dev/null 2>&1 && printf '%s\n' "$entry") & ;;
  esac
done; wait)
new=$nl$new$nl
good=
for entry in $kept; do
  case $last$new in *"$nl$entry$nl"*) good=$good$entry$nl ;; esac
done

printf %s "$good"
if [ -n "$good" ] && { [ ! -r "$admitted" ] || [ "$nl$good" != "$last" ]; }; then
  { printf %s "$good" >"$admitted.$$" && mv -f "$admitted.$$" "$admitted"; } 2>/dev/null
fi
exit 0
"""
"""The script, for any POSIX shell; it uses other tools only if they exist."""

_INSTALL = r"""edl=${EDL:-/etc/edl}
script=$1
shift
for host in "$@"; do printf '%s\n' "$host"; done >"$edl/excluded_hosts.$$" || exit 1
mv -f "$edl/excluded_hosts.$$" "$edl/excluded_hosts" || exit 1
[ "$(cat "$edl/discover_hosts.sh" 2>/dev/null)" = "$script" ] && exit 0
printf '%s\n' "$script" >"$edl/discover_hosts.sh.$$" || exit 1
chmod 755 "$edl/discover_hosts.sh.$$" && mv -f "$edl/discover_hosts.sh.$$" "$edl/discover_hosts.sh"
"""
"""Installs the list and then the script, each atomically: Horovod runs the script every second."""

EXCLUDE = ("sh", "-c", _INSTALL, "sh", DISCOVERY.rstrip("\n"))
"""The command that makes a launcher exclude exactly the hosts that follow it; an existing script is kept."""

HOST_DISCOVERY = HostDiscovery(directory="/etc/edl", file="discover_hosts.sh", script=DISCOVERY)

if __name__ == "__main__":
    print(DISCOVERY, end="")  # noqa: T201 - for the ConfigMap of those who mount it
