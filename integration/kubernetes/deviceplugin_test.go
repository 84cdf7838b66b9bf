package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// gpusOfNodes is how many GPUs each node has, see package cluster.
const gpusOfNodes = 2

// TestDevicePlugin restores pods that a device plugin gives their GPUs, see [giveGPUs].
func TestDevicePlugin(t *testing.T) {
	giveGPUs(t, byDevicePlugin{})
}

// byDevicePlugin has pods ask for nvidia.com/gpu.
type byDevicePlugin struct{}

func (byDevicePlugin) start(t *testing.T, n *cluster.Node) {
	t.Helper()
	serve(t, filepath.Join(n.Root(), deviceplugin.DevicePluginPath, "gpu.sock"), func(s *grpc.Server) {
		deviceplugin.RegisterDevicePluginServer(s, &devicePlugin{})
	})
	kubelet, err := grpc.NewClient("unix://"+filepath.Join(n.Root(), deviceplugin.KubeletSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close()
	if _, err := deviceplugin.NewRegistrationClient(kubelet).Register(t.Context(), &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: "gpu.sock", ResourceName: "nvidia.com/gpu",
		Options: &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the GPUs of "+n.Name, func() bool {
		var o struct {
			Status struct{ Allocatable map[string]string }
		}
		return shared.Get(t.Context(), "/api/v1/nodes/"+n.Name, &o) == nil && o.Status.Allocatable["nvidia.com/gpu"] == strconv.Itoa(gpusOfNodes)
	})
}

func (byDevicePlugin) asks(p pod, gpus int) pod {
	p.container += fmt.Sprintf("\nresources: {limits: {nvidia.com/gpu: %d}}", gpus)
	return p
}

// devicePlugin gives GPUs by the names of CDI devices, as NVIDIA's does with --device-list-strategy=cdi-cri: of those that are free the first.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
}

func (*devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (*devicePlugin) ListAndWatch(_ *deviceplugin.Empty, s grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	var r deviceplugin.ListAndWatchResponse
	for i := range gpusOfNodes {
		r.Devices = append(r.Devices, &deviceplugin.Device{ID: strconv.Itoa(i), Health: deviceplugin.Healthy})
	}
	if err := s.Send(&r); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (*devicePlugin) GetPreferredAllocation(_ context.Context, r *deviceplugin.PreferredAllocationRequest) (*deviceplugin.PreferredAllocationResponse, error) {
	var a deviceplugin.PreferredAllocationResponse
	for _, c := range r.ContainerRequests {
		ids := slices.Sorted(slices.Values(c.AvailableDeviceIDs))
		a.ContainerResponses = append(a.ContainerResponses, &deviceplugin.ContainerPreferredAllocationResponse{DeviceIDs: ids[:c.AllocationSize]})
	}
	return &a, nil
}

func (*devicePlugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	var a deviceplugin.AllocateResponse
	for _, c := range r.ContainerRequests {
		var one deviceplugin.ContainerAllocateResponse
		for _, id := range c.DevicesIds {
			one.CdiDevices = append(one.CdiDevices, &deviceplugin.CDIDevice{Name: "nvidia.com/gpu=" + id})
		}
		a.ContainerResponses = append(a.ContainerResponses, &one)
	}
	return &a, nil
}

// serve answers the kubelet on a socket until the test ends.
func serve(t *testing.T, socket string, register func(*grpc.Server)) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	go func() { _ = s.Serve(l) }() // until it is stopped
	t.Cleanup(s.Stop)              // which removes the socket
}
