# Copies $paths as $folders into $out/src.

mkdir -p "$out/src"
read -ra sources <<< "$paths"
for folder in $folders; do
    cp -r "${sources[0]}" "$out/src/$folder"
    sources=("${sources[@]:1}")
done
chmod -R u+w "$out"
find "$out" -name __pycache__ -prune -exec rm -r {} +

cp -r "$out/src/$kind/.cog" "$out/src/.cog"
# The builder's documented paths are relative to its own folder: ./examples/tiny/config.yaml
if [ -d "$out/src/builder/examples" ]; then
    ln -s builder/examples "$out/src/examples"
fi
# Where an engine is mounted.
if [ -d "$out/src/triton_model_repo" ]; then
    mkdir -p "$out/src/triton_model_repo/tensorrt_llm/1"
fi
