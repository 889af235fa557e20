/* Starting and ending the monitor step, from inside srun. */
#ifndef NCCLMON_LAUNCH_H
#define NCCLMON_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

struct launch {
	uint32_t job, step;
	const char *options, *srun, *ncclmon;
	const char *config; /* or NULL */
	int delay_ms; /* a step that ends earlier gets no monitor */
};

/* Forks a process that stands by for the delay and then becomes ncclmon-step. Returns in less than a millisecond,
 * talks to nobody, and says why when it fails. */
bool launch_start(const struct launch *launch);

/* Tells it that the step is over. With `wait`, gives it up to LAUNCH_WAIT_MS to be gone. */
void launch_end(bool wait);

/* What a step that failed or was cancelled waits for its monitor: long enough for a verdict, an exit code in Slurm's
 * records and a busy slurmctld, short enough to be no nuisance when the monitor is stuck. */
#define LAUNCH_WAIT_MS 5000

#endif
