/* Stands in for Slurm's side of SPANK, as far as the plugin uses it. */
#ifndef NCCLMON_FAKE_SPANK_H
#define NCCLMON_FAKE_SPANK_H

#include <slurm/spank.h>
#include <stdint.h>

extern spank_context_t fake_context;
extern uint32_t fake_job, fake_step, fake_task;
extern char fake_error[1024]; /* the last slurm_error */

void fake_reset(void); /* job 12, step 3, task 0, an empty environment of the task */
const char *fake_getenv(const char *name); /* NULL when the task does not have it */
void fake_setenv(const char *name, const char *value);

#endif
