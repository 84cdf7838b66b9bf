package main

import "context"

// sharesNothing are the settings with which ranks of NCCL have no memory of each other mapped; NVIDIA's driver can restore them then. The last two keep what CRIU dumps of that small.
var sharesNothing = []string{"NCCL_P2P_DISABLE=1", "NCCL_CUMEM_ENABLE=0", "NCCL_CUMEM_HOST_ENABLE=0", "NCCL_MAX_NCHANNELS=2", "NCCL_BUFFSIZE=1048576"}

// withoutMulticast are the settings by which NCCL, PyTorch and NVSHMEM make no multicast objects: on a host whose GPUs others use, too, these can put them out of service.
var withoutMulticast = []string{"NCCL_NVLS_ENABLE=0", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "NVSHMEM_DISABLE_NVLS=1"}

// sharedMemory is a mount of /dev/shm with 1 GiB, for programs that need more than ctr's 64 MiB.
const sharedMemory = "type=tmpfs,src=shm,dst=/dev/shm,options=size=1g:mode=1777:nosuid:nodev"

// ranks returns a container with two ranks of NCCL. They need sharedMemory. The settings reduce what CRIU dumps of it, keep NCCL on this machine, and keep PyTorch's store from
// io_uring, which CRIU cannot dump.
func (b *bench) ranks(id, way string, settings ...string) *container {
	return b.several(b.python(id, "nccl_ranks.py", way), settings...)
}

// several makes a container one of two ranks, on two GPUs.
func (b *bench) several(c *container, settings ...string) *container {
	c.devices, c.members = []int{0, 1}, 2
	c.flags = append(c.flags, "--mount", sharedMemory)
	settings = append(settings, withoutMulticast...)
	settings = append(settings, "NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME=lo",
		"UV_USE_IO_URING=0", "USE_LIBUV=0")
	for _, s := range settings {
		c.flags = append(c.flags, "--env", s)
	}
	return c
}

func runNCCLDefault(ctx context.Context, b *bench, r *result) error {
	c := b.ranks(r.Case, "")
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	return b.refused(ctx, r, c, []string{"gpu-several", sharesNothing[0], sharesNothing[1], sharesNothing[2]}, "--tcp-established")
}

// runNCCL moves both ranks. They speak to each other over TCP as well, within the container.
func runNCCL(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.ranks(r.Case, "", sharesNothing...), route{live: true, checkpoint: []string{"--tcp-established"}})
}
