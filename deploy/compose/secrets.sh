#!/bin/sh
# Makes what the parts of compose.yaml must know of each other, once, in secrets/ beside this file. It is never committed,
# and what exists is left as it is: run it again after removing one file to renew that one.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
# The containers' account reads the files through a mount; on this machine only the owner of the folder comes this far.
chmod 700 secrets
umask 022
cd secrets
# What follows from others is made anew each time; the files are for reading only.
rm -f cell.pub postgres.dsn

[ -s cell.key ] || openssl genpkey -algorithm ed25519 -out cell.key
openssl pkey -in cell.key -pubout -out cell.pub
[ -s mesh.secret ] || openssl rand -hex 32 >mesh.secret
[ -s postgres.password ] || openssl rand -hex 24 >postgres.password
printf 'postgres://queen:%s@postgres:5432/queen?sslmode=disable\n' "$(cat postgres.password)" >postgres.dsn
chmod 444 cell.key cell.pub mesh.secret postgres.password postgres.dsn
echo "secrets are in $PWD"
