#!/bin/bash
# Four nodes with eight GPUs each: sbatch examples/slurm.sh
# All ranks record the same ten steps. This script assumes that all nodes share the directory of sbatch.
# Without a shared disk: docs/hybrid.md, Slurm and Kubernetes.
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
set -euo pipefail
# Paddle's launcher needs the master's IP address: with a host name it waits for ever. This script runs on
# the first node, and asks for the address in the launcher's way.
export master=$(python -c 'import socket; print(socket.gethostbyname(socket.getfqdn()))')
export output="$SLURM_SUBMIT_DIR/job-$SLURM_JOB_ID"
# --log_dir: on a shared disk, the launchers of all nodes would write the same workerlog.0.
srun bash -c '
    exec ppprof run --nproc "$SLURM_GPUS_ON_NODE" --nnodes "$SLURM_NNODES" --rank "$SLURM_NODEID" \
        --master "$master:8090" --log_dir "$output/node$SLURM_NODEID" \
        --log "$output/profiler_log" train.py --config pretrain.yaml
'
ppprof ranks "$output/profiler_log"
ppprof report "$output/profiler_log" -o "$output/report.html"
