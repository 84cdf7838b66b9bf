package kubernetes

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cryo-project/cryo/integration/kubernetes/cluster"
)

// TestDRA restores pods that are given their GPUs by dynamic resource allocation, see [giveGPUs].
func TestDRA(t *testing.T) {
	apply(t, resourceClass)
	giveGPUs(t, byDRA{})
}

// driver is the name of the DRA driver.
const driver = "gpu.nvidia.com"

// resourceClass is the class of all the driver's devices, with a template for claims of each number.
const resourceClass = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: ` + driver + `}
spec: {selectors: [{cel: {expression: 'device.driver == "` + driver + `"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus-1}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: ` + driver + `, count: 1}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus-2}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: ` + driver + `, count: 2}}]}}}
`

// resourceSlice has a node's two GPUs. %[1]s is its name, %[2]s the driver's.
const resourceSlice = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %[1]s}
spec: {driver: %[2]s, nodeName: %[1]s, pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}, devices: [{name: gpu-0}, {name: gpu-1}]}
`

// byDRA has pods ask for GPUs by claims.
type byDRA struct{}

func (byDRA) start(t *testing.T, n *cluster.Node) {
	t.Helper()
	p := &draPlugin{endpoint: "/var/lib/kubelet/plugins/" + driver + "/dra.sock", registered: make(chan *registration.RegistrationStatus, 1)}
	serve(t, filepath.Join(n.Root(), p.endpoint), func(s *grpc.Server) { dra.RegisterDRAPluginServer(s, p) })
	serve(t, filepath.Join(n.Root(), "/var/lib/kubelet/plugins_registry", driver+"-reg.sock"), func(s *grpc.Server) { registration.RegisterRegistrationServer(s, p) })
	select {
	case status := <-p.registered:
		if !status.PluginRegistered {
			t.Fatalf("the kubelet of %s does not take the DRA driver: %s", n.Name, status.Error)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the kubelet of %s does not see the DRA driver", n.Name)
	}
	apply(t, fmt.Sprintf(resourceSlice, n.Name, driver))
}

func (byDRA) asks(p pod, gpus int) pod {
	p.spec += fmt.Sprintf("\nresourceClaims: [{name: gpus, resourceClaimTemplateName: gpus-%d}]", gpus)
	p.container += "\nresources: {claims: [{name: gpus}]}"
	return p
}

// draPlugin tells a kubelet the names of the CDI devices that claims stand for.
type draPlugin struct {
	dra.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer
	endpoint   string // its socket, as the node sees it
	registered chan *registration.RegistrationStatus
}

func (p *draPlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: driver, Endpoint: p.endpoint, SupportedVersions: []string{dra.DRAPluginService}}, nil
}

func (p *draPlugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	select {
	case p.registered <- s:
	default: // it has been told already
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (*draPlugin) NodePrepareResources(ctx context.Context, r *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	a := dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		var claim struct {
			Status struct {
				Allocation struct {
					Devices struct {
						Results []struct{ Request, Driver, Pool, Device string }
					}
				}
			}
		}
		if err := shared.Get(ctx, "/apis/resource.k8s.io/v1/namespaces/"+c.Namespace+"/resourceclaims/"+c.Name, &claim); err != nil {
			return nil, err
		}
		prepared := &dra.NodePrepareResourceResponse{}
		for _, d := range claim.Status.Allocation.Devices.Results {
			if d.Driver == driver {
				prepared.Devices = append(prepared.Devices, &dra.Device{RequestNames: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device,
					CdiDeviceIds: []string{"nvidia.com/gpu=" + strings.TrimPrefix(d.Device, "gpu-")}})
			}
		}
		a.Claims[c.Uid] = prepared
	}
	return &a, nil
}

func (*draPlugin) NodeUnprepareResources(_ context.Context, r *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	a := dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		a.Claims[c.Uid] = &dra.NodeUnprepareResourceResponse{}
	}
	return &a, nil
}
