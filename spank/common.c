#include "common.h"

#include <slurm/slurm.h>
#include <slurm/spank.h>

void complain(const char *message)
{
	slurm_error("ncclmon: %s", message);
}

void whisper(const char *message)
{
	slurm_verbose("ncclmon: %s", message);
}

static void say_nothing(const char *message)
{
	(void)message;
}

void read_site(struct site *site, int count, char *const arguments[])
{
	spank_context_t context = spank_context();

	site_parse(site, count, arguments, context == S_CTX_SLURMD || context == S_CTX_REMOTE ? complain : say_nothing);
}

bool is_normal_step(uint32_t step)
{
	return step < SLURM_MAX_NORMAL_STEP_ID;
}
