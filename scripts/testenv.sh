#!/usr/bin/env bash
# Runs a command with a temporary PostgreSQL and Redis of its own, on sockets in a temporary folder, and stops both by
# process id whatever happens: testenv.sh go test ./...
#
# A server named in QUEENGATE_TEST_POSTGRES or QUEENGATE_TEST_REDIS is used instead and left alone.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: testenv.sh COMMAND [ARGUMENT...]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)

work=$(mktemp -d /tmp/queengate-test.XXXXXX)
postgres_pid="" redis_pid=""
cleanup() {
	status=$?
	trap - EXIT
	# SIGINT is PostgreSQL's fast shutdown: it does not wait for sessions that a dead test left.
	[ -z "$postgres_pid" ] || kill -INT "$postgres_pid" 2>/dev/null || true
	[ -z "$redis_pid" ] || kill "$redis_pid" 2>/dev/null || true
	wait
	rm -rf "$work"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# PostgreSQL does not run as root: then it is its own user's, or nobody's, who must reach the folder. setpriv becomes
# the program, so that the process id is the server's.
as=()
if [ "$(id -u)" = 0 ]; then
	user=$(id -u postgres >/dev/null 2>&1 && echo postgres || echo nobody)
	as=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups)
	chmod 711 "$work"
fi

newest_bin() {
	for initdb in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb /usr/libexec/postgresql*/initdb "$(command -v initdb || true)"; do
		[ ! -x "$initdb" ] || echo "$("$initdb" --version | sed 's/.*PostgreSQL) \([0-9.]*\).*/\1/') $(dirname "$(readlink -f "$initdb")")"
	done | sort -V | tail -n 1 | cut -d' ' -f2-
}

if [ -z "${QUEENGATE_TEST_POSTGRES:-}" ]; then
	"$here/need.sh" postgres
	bin=$(newest_bin)
	mkdir "$work/pg"
	[ ${#as[@]} = 0 ] || chown "$user" "$work/pg"
	# fsync is off: what a test loses in a power cut nobody misses.
	(cd / && "${as[@]}" "$bin/initdb" -D "$work/pg/data" -U postgres -A trust -E UTF8 --locale=C --no-sync --no-instructions >"$work/initdb.log" 2>&1) ||
		{ cat "$work/initdb.log" >&2; exit 1; }
	(cd / && exec "${as[@]}" "$bin/postgres" -D "$work/pg/data" -k "$work/pg" -c listen_addresses= -c fsync=off -c full_page_writes=off \
		-c max_connections=400 -c shared_buffers=256MB -c jit=off -c autovacuum_naptime=10s) >"$work/postgres.log" 2>&1 &
	postgres_pid=$!
	export QUEENGATE_TEST_POSTGRES="host=$work/pg user=postgres"
fi
if [ -z "${QUEENGATE_TEST_REDIS:-}" ]; then
	"$here/need.sh" redis
	redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --appendonly no --dir "$work" >"$work/redis.log" 2>&1 &
	redis_pid=$!
	export QUEENGATE_TEST_REDIS="unix://$work/redis.sock"
fi

# ready TITLE LOG PID COMMAND: waits until the command succeeds, at most ten seconds.
ready() {
	title=$1 log=$2 pid=$3
	shift 3
	for _ in $(seq 200); do
		"$@" >/dev/null 2>&1 && return
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.05
	done
	echo "$title does not start:" >&2
	tail -n 20 "$log" >&2
	exit 1
}
[ -z "$postgres_pid" ] || ready PostgreSQL "$work/postgres.log" "$postgres_pid" "$bin/pg_isready" -q -h "$work/pg" -U postgres
[ -z "$redis_pid" ] || ready Redis "$work/redis.log" "$redis_pid" test -S "$work/redis.sock"

"$@"
