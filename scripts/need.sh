#!/usr/bin/env bash
# Sees to it that programs are there: need.sh postgres redis cc curl. As root on Debian or Ubuntu it installs what is missing;
# elsewhere it says what to install.
set -euo pipefail

has() {
	case $1 in
	postgres)
		for p in /usr/lib/postgresql/*/bin/initdb /usr/pgsql-*/bin/initdb /usr/libexec/postgresql*/initdb "$(command -v initdb || true)"; do
			[ -x "$p" ] || continue
			version=$("$p" --version | sed 's/.*PostgreSQL) \([0-9]*\).*/\1/')
			[ "$version" -ge 15 ] && return 0
		done
		return 1
		;;
	redis) command -v redis-server >/dev/null ;;
	curl) command -v curl >/dev/null ;; # the lines to paste, which the tests paste too
	nginx | haproxy | caddy) PATH=$PATH:/usr/sbin command -v "$1" >/dev/null ;; # what the bench measures the gateway beside
	cc) command -v "${CC:-gcc}" >/dev/null ;; # the race detector needs cgo
	esac
}

packages() {
	case $1 in
	postgres) echo "postgresql" ;;
	redis) echo "redis-server" ;;
	curl) echo "curl" ;;
	nginx | haproxy | caddy) echo "$1" ;;
	cc) echo "gcc libc6-dev" ;;
	*) echo "need.sh: unknown program $1" >&2 && return 2 ;;
	esac
}

missing=""
for program in "$@"; do
	list=$(packages "$program")
	has "$program" || missing="$missing $list"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "These packages are needed (their names on Debian; PostgreSQL 15 or newer):$missing" >&2
	echo "Install them, then run this again." >&2
	exit 1
fi
echo "installing:$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# A package must not start its service: everything here starts its own and stops it again.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq >&2
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing >&2
for program in "$@"; do
	has "$program" || { echo "need.sh: $program is still missing after the installation (PostgreSQL must be 15 or newer)" >&2; exit 1; }
done
