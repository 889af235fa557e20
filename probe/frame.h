/* What the probe leaves in shared memory. This is the only definition of it: probe/layout.py turns it into the reader's
 * dtypes (slurm_ncclmon/probe/layout.py), so keep to `uintN_t name;`, `struct name name;` and `[N]`.
 *
 * One file for each process: a header page, then `frames` frames, one for each communicator. Little endian, naturally aligned.
 * Every word is stored whole, so a reader sees each word as it was at some moment; a record of several words carries a version
 * that is odd while it is being written. Each cache line has one writing thread (named at its fields). */
#ifndef NCCLMON_FRAME_H
#define NCCLMON_FRAME_H

#include <stdint.h>

#define NCCLMON_MAGIC 0x31454d4152464d4eull /* "NMFRAME1" in memory */
#define NCCLMON_ABI 1
#define NCCLMON_HEADER_BYTES 4096
#define NCCLMON_RECENT 4    /* finished operations kept */
#define NCCLMON_CHANNELS 32 /* channel c is kept at c % 32; NCCL has at most 64 */

enum ncclmon_frame_state { FRAME_FREE, FRAME_LIVE, FRAME_FINALISED, FRAME_SHARED };
enum ncclmon_frame_flag { FLAG_KERNEL_EVENTS = 1, FLAG_KERNEL_SEEN = 2, FLAG_FOLDED = 4, FLAG_STEPS_SEEN = 8 };
enum ncclmon_op_flag { OP_INFERRED = 1, OP_SEND = 2, OP_RECV = 4 };

/* NCCL's names for what it does, with our codes: X(code, name). Functions 1 to 5 are in the order in which RAS counts them. */
#define NCCLMON_FUNCTIONS(X)                                                                                                  \
	X(OTHER, "other") X(BROADCAST, "Broadcast") X(REDUCE, "Reduce") X(ALLGATHER, "AllGather")                              \
	X(REDUCESCATTER, "ReduceScatter") X(ALLREDUCE, "AllReduce") X(SEND, "Send") X(RECV, "Recv")                            \
	X(ALLTOALL, "AlltoAll") X(GATHER, "Gather") X(SCATTER, "Scatter")
#define NCCLMON_ALGORITHMS(X)                                                                                                 \
	X(OTHER, "other") X(TREE, "TREE") X(RING, "RING") X(COLLNET_DIRECT, "COLLNET_DIRECT")                                  \
	X(COLLNET_CHAIN, "COLLNET_CHAIN") X(NVLS, "NVLS") X(NVLS_TREE, "NVLS_TREE") X(PAT, "PAT")
#define NCCLMON_PROTOCOLS(X) X(OTHER, "other") X(LL, "LL") X(LL128, "LL128") X(SIMPLE, "SIMPLE")
#define NCCLMON_DATATYPES(X)                                                                                                  \
	X(OTHER, "other") X(INT8, "ncclInt8") X(UINT8, "ncclUint8") X(INT32, "ncclInt32") X(UINT32, "ncclUint32")              \
	X(INT64, "ncclInt64") X(UINT64, "ncclUint64") X(FLOAT16, "ncclFloat16") X(FLOAT32, "ncclFloat32")                      \
	X(FLOAT64, "ncclFloat64") X(BFLOAT16, "ncclBfloat16") X(FLOAT8E4M3, "ncclFloat8e4m3") X(FLOAT8E5M2, "ncclFloat8e5m2")

#define NCCLMON_FUNCTION(code, name) FUNCTION_##code,
#define NCCLMON_ALGORITHM(code, name) ALGORITHM_##code,
#define NCCLMON_PROTOCOL(code, name) PROTOCOL_##code,
#define NCCLMON_DATATYPE(code, name) DATATYPE_##code,
enum ncclmon_function { NCCLMON_FUNCTIONS(NCCLMON_FUNCTION) };
enum ncclmon_algorithm { NCCLMON_ALGORITHMS(NCCLMON_ALGORITHM) };
enum ncclmon_protocol { NCCLMON_PROTOCOLS(NCCLMON_PROTOCOL) };
enum ncclmon_datatype { NCCLMON_DATATYPES(NCCLMON_DATATYPE) };

/* What the oldest unfinished step of a link waits for. */
enum ncclmon_wait {
	WAIT_NONE,         /* no step in flight */
	WAIT_SEND_GPU,     /* a slot is free: this rank's GPU must produce */
	WAIT_SEND_PEER,    /* data are ready: the receiver has posted nothing */
	WAIT_SEND_NETWORK, /* handed to the network */
	WAIT_RECV_NETWORK, /* posted: data are to arrive */
	WAIT_RECV_FLUSH,   /* arrived, being made visible to the GPU */
	WAIT_RECV_GPU      /* arrived: this rank's GPU must consume */
};

/* One operation, one cache line. Times are CLOCK_MONOTONIC nanoseconds, 0 = not yet. */
struct ncclmon_op {
	uint32_t version;    /* odd while being written */
	uint8_t function;
	uint8_t algorithm;
	uint8_t protocol;
	uint8_t datatype;
	uint32_t position;   /* among all operations of this rank in the communicator, from 1; 0 = no operation */
	uint32_t round;      /* among its collectives (or sends, or receives), from 1: the same on all ranks of a collective */
	uint64_t count;      /* elements */
	uint64_t enqueued_ns; /* clock of a few milliseconds' resolution */
	uint64_t started_ns; /* first channel's kernel seen to run (without kernel events: first proxy operation in progress) */
	uint64_t ended_ns;   /* last channel's kernel seen to end */
	uint32_t device_64ns; /* by the GPU's own timer, first start to last stop, in units of 64 ns, saturating */
	int32_t peer;        /* root of a rooted collective, peer of a send or receive */
	uint32_t sequence;   /* NCCL's own number for this function, from 0; RAS's count is one more */
	uint8_t channels;
	uint8_t started;     /* channels whose kernel started, of all `channels` */
	uint8_t stopped;
	uint8_t flags;
};

/* One direction of one channel, a single 64-bit word:
 * steps done (32 bits) | peer (20) | what the oldest unfinished step waits for (4) | steps posted, not done (4) | of these sent
 * or arrived (4). */
#define NCCLMON_LINK(done, peer, wait, posted, moved)                                                                          \
	((uint64_t)(uint32_t)(done) | (uint64_t)((peer) & 0xfffff) << 32 | (uint64_t)(wait) << 52 | (uint64_t)(posted) << 56 | \
	 (uint64_t)(moved) << 60)

struct ncclmon_channel {
	uint64_t send;
	uint64_t recv;
};

/* One direction of all channels together. */
struct ncclmon_flow {
	uint64_t moved; /* steps handed to the network, or arrived */
	uint64_t done;
	uint64_t bytes;
	uint64_t last_ns; /* a step was last done; clock of a few milliseconds' resolution */
};

struct ncclmon_frame {
	/* who: written at init */
	uint32_t magic; /* low word of NCCLMON_MAGIC */
	uint8_t state;
	uint8_t flags;
	uint16_t generation; /* of this place in the file: one more for each communicator that it served */
	uint64_t communicator; /* NCCL's commHash, as RAS prints it */
	uint32_t rank;
	uint32_t size;
	uint32_t nodes;
	uint32_t lost_operations; /* more in flight than are kept */
	uint64_t init_ns;
	uint8_t name[16];
	uint32_t lost_steps; /* more connections in progress on a channel than are kept */
	uint32_t skipped;    /* two threads wrote one record at once: it kept the other's */

	/* enqueuing: the thread that calls NCCL */
	uint64_t enqueued;  /* low half: operations, positions 1 to this; high half: collectives among them */
	uint64_t calls;     /* of NCCL's functions, noted before anything can block (NCCL 2.28 on) */
	uint64_t called_ns; /* last of these, clock of a few milliseconds' resolution */
	uint64_t sends;
	uint64_t receives;
	uint32_t sequence[5]; /* per function as RAS counts: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce */
	uint32_t launches;    /* groups launched */

	/* the device: the thread that reports kernels */
	uint64_t finished; /* operations 1 … finished are done */
	uint64_t finished_bytes;
	uint64_t started_channels; /* bit c: channel c's kernel of operation `finished + 1` has started */
	uint64_t stopped_channels;
	uint64_t busy_ns; /* some operation had started and not ended */
	uint64_t idle_ns;
	uint64_t busy_since_ns; /* 0 = idle */
	uint64_t kernel_ns;     /* an operation last started or ended */

	/* the network: the proxy thread */
	struct ncclmon_flow send;
	struct ncclmon_flow recv;

	struct ncclmon_op newest;                  /* last enqueued */
	struct ncclmon_op oldest;                  /* operation `finished + 1`, once enqueued */
	struct ncclmon_op recent[NCCLMON_RECENT];  /* finished operation p is at p % 4 */
	struct ncclmon_channel channel[NCCLMON_CHANNELS];
};

struct ncclmon_header {
	uint64_t magic;
	uint16_t abi;
	uint16_t header_bytes;
	uint16_t frame_bytes;
	uint16_t frames;
	uint32_t pid; /* in the process's own namespace */
	uint32_t uid;
	uint64_t start_ticks; /* /proc/PID/stat field 22: with the pid, this process and no later one */
	uint64_t pid_namespace;
	uint64_t monotonic_ns; /* the two clocks at init */
	uint64_t realtime_ns;
	int32_t job; /* Slurm's ids, -1 = not known */
	int32_t step;
	int32_t task;
	int32_t local_task;
	int32_t rank; /* RANK, which torchrun sets, else `task` */
	uint32_t nccl_version; /* 23007 is 2.30.7, 0 = not known */
	uint32_t interface;
	uint32_t mask; /* events asked for */
	uint8_t host[64];
	uint8_t devices[64]; /* CUDA_VISIBLE_DEVICES */
	uint32_t used;          /* frames that have been used */
	uint32_t shared;        /* communicators that found no frame and are counted in frame 0 only */
	uint64_t foreign;       /* proxy operations of other processes */
	uint64_t bad_handles;   /* calls with a handle that is none of ours or out of date */
};

_Static_assert(sizeof(struct ncclmon_op) == 64, "an operation is one cache line");
_Static_assert(sizeof(struct ncclmon_frame) == 1152, "a frame is 18 cache lines");
_Static_assert(sizeof(struct ncclmon_header) <= NCCLMON_HEADER_BYTES, "the header fits its page");

#endif
