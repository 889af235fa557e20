/* The entry points, and nothing else. Every hook says "success": what goes wrong with us is no reason to fail a job.
 * Wrong options are refused by the option's own callback (request.c). */
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include "contexts.h"

SPANK_PLUGIN(ncclmon, 1)

int slurm_spank_init(spank_t spank, int count, char *arguments[])
{
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		alloc_init(spank, count, arguments);
		break;
	case S_CTX_LOCAL:
		srun_init(spank, count, arguments);
		break;
	case S_CTX_REMOTE:
		stepd_init(spank, count, arguments);
		break;
	case S_CTX_SLURMD:
		slurmd_init(count, arguments);
		break;
	default:
		break;
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[])
{
	(void)spank, (void)count, (void)arguments;
	if (spank_context() == S_CTX_ALLOCATOR)
		alloc_options_read();
	else if (spank_context() == S_CTX_LOCAL)
		srun_options_read();
	return ESPANK_SUCCESS;
}

int slurm_spank_local_user_init(spank_t spank, int count, char *arguments[])
{
	(void)count, (void)arguments;
	srun_step_created(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_user_init(spank_t spank, int count, char *arguments[])
{
	(void)count, (void)arguments;
	stepd_before_tasks(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char *arguments[])
{
	(void)count, (void)arguments;
	stepd_in_task(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int count, char *arguments[])
{
	(void)count, (void)arguments;
	if (spank_context() == S_CTX_LOCAL)
		srun_exit();
	else if (spank_context() == S_CTX_REMOTE)
		stepd_exit(spank);
	return ESPANK_SUCCESS;
}
