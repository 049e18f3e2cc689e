#!/usr/bin/env bash
# ask.sh BUILDER RUNNER: builds the tiny engine in a container of the one image, and serves it in one of the other.
# OPTIONS are for `docker run`.
set -euo pipefail

read -ra options <<< "${OPTIONS:-}"
folder=$(mktemp -d)
containers=()
stop() {
    docker rm --force --volumes "${containers[@]}" > /dev/null
    rm -rf "$folder"
}
trap stop EXIT

# start NAME OPTIONS...: a container, ready; its id is in $id, Cog's address in $cog.
start() {
    id=$(docker run --detach --publish-all "${options[@]}" "${@:2}" "$1")
    containers+=("$id")
    cog=http://$(docker port "$id" 5000/tcp | sed -n 1p | sed 's/0.0.0.0/127.0.0.1/')
    for _ in $(seq 300); do
        case $(curl --silent "$cog/health-check" || true) in
            *'"READY"'*) return ;;
            *FAILED* | *DEFUNCT*) break ;;
        esac
        sleep 1
    done
    docker logs "$id" >&2
    exit 1
}

start "$1"
curl --silent --fail --json '{"input": {"config": "./examples/tiny/config.yaml"}}' "$cog/predictions" \
    | grep --quiet '"succeeded"'
docker container cp "$id:/src/engine.tar" "$folder"
chmod -R a+rX "$folder"

start "$2" --volume "$folder:/engines:ro" --env COG_WEIGHTS=/engines/engine.tar
curl --silent --fail --json '{"input": {"prompt": "The whale", "max_tokens": 8}}' "$cog/predictions" | grep '"succeeded"'
chat=http://$(docker port "$id" 9000/tcp | sed -n 1p | sed 's/0.0.0.0/127.0.0.1/')
curl --silent --fail --json '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}' \
    "$chat/v1/chat/completions" | grep '"chat.completion"'
