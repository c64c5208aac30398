#!/usr/bin/env bash
# The container engine of the slow tests: the Docker or Podman that runs here, or a private one, which needs Debian and root.
#   tests/deploy/engine.sh start   finds or starts the container engine, and makes the base image; prints what to export
#   tests/deploy/engine.sh stop    ends the container engine that `start` began; leaves any other one alone
# Variables: ENGINE_DIR (folder of the private container engine), BASE_IMAGE (Python image that all images are built from)
set -euo pipefail
dir=${ENGINE_DIR:-/var/tmp/foldflight-engine}
private=unix://$dir/docker.sock
base=${BASE_IMAGE:-foldflight/python:bookworm}

answers() { docker info >/dev/null 2>&1; }

install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || {
    echo "engine.sh: no container engine answers. Start Docker (or Podman's socket, and set DOCKER_HOST); on Debian," >&2
    echo "           as root, this script installs and starts a private one." >&2
    exit 1
  }
  local apt_get="apt-get -o Acquire::Retries=5"
  { $apt_get update -qq && DEBIAN_FRONTEND=noninteractive $apt_get install -y -qq --no-install-recommends "$@"; } \
    >"$dir/apt.log" 2>&1 || { tail -20 "$dir/apt.log" >&2; exit 1; }
}

# Sets DOCKER_HOST to the container engine to use.
find_engine() {
  command -v docker >/dev/null && answers && return
  local podman=unix://${XDG_RUNTIME_DIR:-/run}/podman/podman.sock
  if command -v docker >/dev/null && [[ -S ${podman#unix://} ]] && DOCKER_HOST=$podman answers; then
    export DOCKER_HOST=$podman
    return
  fi
  export DOCKER_HOST=$private
  command -v dockerd >/dev/null || install docker.io
  command -v docker >/dev/null || install docker-cli # a package of its own from Debian 13 on
  answers && return
  # Addresses that are reserved for tests of networks: they collide with no real network.
  setsid nohup dockerd --data-root "$dir/data" --exec-root "$dir/exec" -H "$DOCKER_HOST" --pidfile "$dir/docker.pid" \
    --ip 127.0.0.1 --bip 198.18.0.1/24 --default-address-pool base=198.18.128.0/17,size=24 \
    >"$dir/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 1800); do answers && return; sleep .1; done
  tail -5 "$dir/dockerd.log" >&2
  exit 1
}

# Made of Debian's packages, so no registry of images is needed. It has the certificates that this machine trusts.
make_base() {
  docker image inspect "$base" >/dev/null 2>&1 && return
  [[ -z ${BASE_IMAGE:-} ]] || { docker pull --quiet "$base" >&2; return; }
  command -v mmdebstrap >/dev/null || install mmdebstrap
  mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Acquire::Retries "5"' --include=ca-certificates,python3-minimal,python3-venv,python3-pip \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='copy-in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs' \
    --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\nretries = 10\ntimeout = 60\n" > "$1/etc/pip.conf"' \
    --customize-hook='rm -f "$1"/usr/lib/python3.*/EXTERNALLY-MANAGED; ln -sf python3 "$1/usr/bin/python"' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/*' \
    bookworm - 2>"$dir/base-image.log" \
    | docker import --change 'ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_NO_CACHE_DIR=1' \
        --change 'CMD ["python3"]' - "$base" >/dev/null || { tail -5 "$dir/base-image.log" >&2; exit 1; }
}

start() {
  mkdir -p "$dir"
  find_engine
  make_base
  # Without DOCKER_HOST all tools use the default container engine. testcontainers needs the other variables.
  [[ -z ${DOCKER_HOST:-} ]] || echo "export DOCKER_HOST=$DOCKER_HOST"
  echo "export BASE_IMAGE=$base"
  echo "export TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_CONNECTION_MODE=docker_host TC_HOST=127.0.0.1"
}

stop() {
  [[ -f $dir/docker.pid ]] || return 0
  local pid
  pid=$(cat "$dir/docker.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || return 0; sleep .1; done
  echo "engine.sh: the container engine (process $pid) did not stop" >&2
  exit 1
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  *) echo "usage: $0 start|stop" >&2; exit 2 ;;
esac
