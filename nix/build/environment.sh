# Builds a Python environment in $out of $wheels and $archives, without $leaveOut, for the GPU of $sm.

# Patterns are for install_wheels.py, not for the shell.
set -f

printf '%s\n' $wheels > wheels
arguments=()
for pattern in $leaveOut; do
    arguments+=("--leave-out=$pattern")
done
python3 "$installWheels" --out "$out" --wheels wheels "${arguments[@]}"
$slim ${slim:+"$out"}
