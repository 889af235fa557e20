"""The laboratory: a real Slurm cluster and training jobs with a real NCCL RAS mesh, on one machine without a GPU."""
