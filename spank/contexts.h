/* The hooks of each SPANK context, called by dispatch.c. None of them can fail a job. */
#ifndef NCCLMON_CONTEXTS_H
#define NCCLMON_CONTEXTS_H

#include <slurm/spank.h>

/* sbatch and salloc */
void alloc_init(spank_t spank, int count, char *arguments[]);
void alloc_options_read(void);

/* srun */
void srun_init(spank_t spank, int count, char *arguments[]);
void srun_options_read(void);
void srun_step_created(spank_t spank);
void srun_exit(void);

/* slurmstepd */
void stepd_init(spank_t spank, int count, char *arguments[]);
void stepd_before_tasks(spank_t spank);
void stepd_in_task(spank_t spank); /* each task's process, as the user */
void stepd_exit(spank_t spank);

/* slurmd */
void slurmd_init(int count, char *arguments[]);

#endif
