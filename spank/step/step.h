/* ncclmon-step: runs the monitor step of one job step. */
#ifndef NCCLMON_STEP_H
#define NCCLMON_STEP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "../options.h"

struct step {
	uint32_t job, step;
	const char *options, *srun, *ncclmon;
	const char *config; /* or NULL */
	int group; /* component of a heterogeneous job, or -1 */
	char node[256]; /* the step's first */
	char folder[PATH_MAX]; /* of the report, absolute */
};

/* layout.c: asks Slurm for the step's first node; fills `node`, `group`, and makes `job` the leader of a heterogeneous
 * job. Returns false when Slurm does not tell. */
bool find_first_node(struct step *step);

/* folder.c: makes the report folder and fills `folder`. On failure `message` says why. */
bool make_folder(struct step *step, char message[MESSAGE_MAX]);

/* command.c: what is run, both NULL-terminated and allocated for good; NULL when memory is short. */
char **monitor_command(const struct step *step);
char **monitor_environment(const struct step *step, char *const environment[]);

/* supervise.c: runs the command with the line as its standard input, ends it when it outlives the step for too long,
 * and returns when it is gone. */
void supervise(char *const command[], char *const environment[]);

#endif
