#!/bin/sh
# build.sh SOURCES OUT: makes three libraries of kernels in OUT, for GPUs of SM 90. Needs nvcc.
#   libplain.so         dead: machine code for SM 75 alone; live: 80 and 90; ptx: 75 and PTX for 80; both: 90 and 90a
#   librelocatable.so   two halves, linked for 80 and 90
#   liblinkedatload.so  two halves, linked for 75 alone, with PTX for 80: the driver links them when they are loaded
set -eu
sources=$1
cd "$2"
compile() { nvcc -Xcompiler -fPIC "$@"; }
for75="-gencode arch=compute_75,code=sm_75"
for80="-gencode arch=compute_80,code=sm_80"
for90="-gencode arch=compute_90,code=sm_90"
ptx80="-gencode arch=compute_80,code=compute_80"

compile -c "$sources/kernels.cu" -DKERNEL=dead $for75 -o dead.o &
compile -c "$sources/kernels.cu" -DKERNEL=live $for80 $for90 -o live.o &
compile -c "$sources/kernels.cu" -DKERNEL=ptx $for75 $ptx80 -o ptx.o &
compile -c "$sources/kernels.cu" -DKERNEL=both $for80 $for90 -gencode arch=compute_90a,code=sm_90a -o both.o &
for half in kernels elsewhere; do
    compile -dc "$sources/$half.cu" -DKERNEL=relocatable -DRELOCATABLE $for80 $for90 -o "$half.o" &
    compile -dc "$sources/$half.cu" -DKERNEL=relocatable -DRELOCATABLE $for75 $ptx80 -o "$half.load.o" &
done
wait
compile -shared -cudart static dead.o live.o ptx.o both.o -o libplain.so
compile -shared -cudart static $for80 $for90 kernels.o elsewhere.o -o librelocatable.so
compile -shared -cudart static $for75 kernels.load.o elsewhere.load.o -o liblinkedatload.so
rm -f ./*.o
