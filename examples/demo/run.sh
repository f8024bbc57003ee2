#!/bin/sh
# The main job on a small code base, twice: the second run finds every answer in its journal.
# usage: run.sh PATH/TO/fanfold
set -eu
fanfold=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")"

describe() {
  "$fanfold" map 'station/**/*.py' \
    --prompt 'Here is the Python file {path}: {content} In one short sentence, what does it do?' \
    --schema purpose.json --model local/default --concurrency 4 --out results.jsonl "$@"
}

echo "First run: a model of 135 million parameters reads every file, in this process."
describe --fresh
echo
echo "The same command again:"
describe
