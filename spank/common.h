/* What all contexts share: how we speak, and what is never watched. */
#ifndef NCCLMON_COMMON_H
#define NCCLMON_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "site.h"

/* Stands in the environment of the monitor and of all that it starts: none of that is ever watched. */
#define MONITOR_ENVIRONMENT "NCCLMON_IS_MONITOR"

/* An error line of the command that runs us, or of the daemon's log. */
void complain(const char *message);

/* The same, but seen by `srun -v` only. */
void whisper(const char *message);

/* Reads the arguments behind us in plugstack.conf. Mistakes there go to the logs of the daemons, not to every user. */
void read_site(struct site *site, int count, char *const arguments[]);

/* False for the batch, extern and interactive steps, which are none of a user's own. */
bool is_normal_step(uint32_t step);

#endif
