package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// Node is a host with a kubelet.
type Node struct {
	*lab.Host

	cluster *Cluster
	pods    string // subnet of its pods
	labels  string // that the kubelet gives it, as --node-labels has them
	kubelet *lab.Program
	begun   time.Time // when the kubelet was started
}

// criConfig is what containerd has for kubelets. %[1]s is the image of sandboxes, %[2]s the directory of CNI plugins, %[3]s the handler of pods that name none.
const criConfig = `
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '%[1]s'
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = '/etc/containerd/certs.d'

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['%[2]s']
    conf_dir = '/etc/cni/net.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = '%[3]s'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
`

// cryoConfig allows pods to be restored from the cluster's registry. %[1]s is its address.
const cryoConfig = `[restore.policy]
repositories = ["%[1]s"]
plain-http = ["%[1]s"]
[trust.repositories]
"%[1]s" = "unsigned"
`

// networkConfig gives pods a bridge of their node. %[1]s is their subnet.
const networkConfig = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "%[1]s"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`

// mirrorConfig has containerd pull images of all registries from one. %[1]s is its address.
const mirrorConfig = `server = "http://%[1]s"

[host."http://%[1]s"]
  capabilities = ["pull", "resolve"]
`

// kubeletConfig sets nothing on the machine that outlives the node.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failCgroupV1: false
cgroupDriver: cgroupfs
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
registryPullQPS: 0
syncFrequency: 5s # so late does a Secret reach the files of a pod
eventRecordQPS: 0
serializeImagePulls: false
resolvConf: /etc/resolv.conf
`

// kubeletScript starts a kubelet, which would set sysctls of the machine, with a view of these that is as it wants them. Its arguments are a directory and
// the kubelet's command.
const kubeletScript = `set -e
mount --make-private /proc
dir=$1; shift
mkdir -p "$dir"
while read -r name value; do
	echo "$value" >"$dir/$name"
	mount --bind "$dir/$name" "/proc/sys/$(echo "$name" | tr . /)"
done <<END
vm.overcommit_memory 1
vm.panic_on_oom 0
kernel.panic 10
kernel.panic_on_oops 1
kernel.keys.root_maxkeys 1000000
kernel.keys.root_maxbytes 25000000
END
exec "$@"
`

// Host starts a host with containerd's CRI plugin and the handlers runc and cryo, without a kubelet. Handler is that of pods that name none; gpus may be nil.
func (c *Cluster) Host(ctx context.Context, name, handler, pods string, gpus *lab.GPUs) (*lab.Host, error) {
	root, err := lab.Checkout()
	if err != nil {
		return nil, err
	}
	// What users put there.
	dropIn, err := os.ReadFile(filepath.Join(root, "contrib/containerd/cryo.toml"))
	if err != nil {
		return nil, fmt.Errorf("read the handler's configuration: %w", err)
	}
	return c.Lab.Host(ctx, name, lab.HostOptions{
		Config:     fmt.Sprintf(criConfig, c.Registry.Reference(pause), c.Lab.Tool("kubernetes/cni"), handler),
		CryoConfig: fmt.Sprintf(cryoConfig, c.Registry.Address),
		GPUs:       gpus,
		Node: &lab.Node{Files: map[string]string{
			"/etc/containerd/conf.d/cryo.toml":            strings.Replace(string(dropIn), "/usr/local/bin/containerd-shim-cryo-v1", c.Lab.Tool("containerd-shim-cryo-v1"), 1),
			"/etc/containerd/certs.d/_default/hosts.toml": fmt.Sprintf(mirrorConfig, c.Registry.Address),
			"/etc/cni/net.d/10-pods.conflist":             fmt.Sprintf(networkConfig, pods),
		}},
	})
}

// gpusOf are what a node has by the fake driver: two, whose device nodes have other numbers on each node.
var gpusOf = map[string]lab.GPUs{
	"node-a": {UVM: 511, Devices: []lab.GPU{{Minor: 0}, {Minor: 1}}},
	"node-b": {UVM: 508, Driver: "580.173.01", Devices: []lab.GPU{{Minor: 4}, {Minor: 1}}},
}

// Minor is the number N of /dev/nvidiaN that the node's GPU with an index has.
func (n *Node) Minor(index int) int { return gpusOf[n.Name].Devices[index].Minor }

// startNode starts a node, which becomes ready some time later.
func (c *Cluster) startNode(ctx context.Context, name string) (*Node, error) {
	n := &Node{cluster: c, pods: c.podsOf(len(c.nodes)), labels: "io.cryo.runtime=true"}
	gpus := gpusOf[name]
	var err error
	if n.Host, err = c.Host(ctx, name, "runc", n.pods, &gpus); err != nil {
		return nil, err
	}
	return n, n.join(ctx)
}

// podsOf is the subnet of a node's pods.
func (c *Cluster) podsOf(index int) string {
	return fmt.Sprintf("10.212.%d.%d/26", c.Lab.Number(), 64*index)
}

// join makes a host a node.
func (n *Node) join(ctx context.Context) error {
	if err := n.route(ctx); err != nil {
		return err
	}
	dir := filepath.Join(n.Dir, "node")
	if err := n.cluster.writeKubeconfig("system:node:"+n.Name, filepath.Join(dir, "kubelet.kubeconfig")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "kubelet.yaml"), []byte(kubeletConfig), 0o600); err != nil {
		return fmt.Errorf("write kubelet's configuration: %w", err)
	}
	n.cluster.nodes = append(n.cluster.nodes, n)
	return n.StartKubelet(ctx)
}

// bare is the name of the node of [Cluster.Bare].
const bare = "node-bare"

// Bare starts a node without cryo: it has no programs of cryo, no CRIU, no handler and no label. The node trusts the certificates of a registry. Bare returns when the node is ready.
func (c *Cluster) Bare(ctx context.Context, registry *lab.Registry) (*Node, error) {
	authority, err := os.ReadFile(registry.CA)
	if err != nil {
		return nil, fmt.Errorf("read the registry's authority: %w", err)
	}
	n := &Node{cluster: c, pods: c.podsOf(2)}
	places := []string{filepath.Dir(c.Lab.Tool("runc")), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	n.Host, err = c.Lab.Host(ctx, bare, lab.HostOptions{
		Config: fmt.Sprintf(criConfig, c.Registry.Reference(pause), c.Lab.Tool("kubernetes/cni"), "runc"),
		Env:    []string{"CRYO_CONFIG=", "CRYO_ROOT=", "PATH=" + strings.Join(places, ":")},
		Node: &lab.Node{Files: map[string]string{
			"/etc/containerd/config.toml":                                 "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n",
			"/etc/containerd/certs.d/_default/hosts.toml":                 fmt.Sprintf(mirrorConfig, c.Registry.Address),
			"/etc/containerd/certs.d/" + registry.Address + "/hosts.toml": fmt.Sprintf("server = \"https://%[1]s\"\n\n[host.\"https://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \"/etc/docker/certs.d/%[1]s/ca.crt\"\n", registry.Address),
			"/etc/docker/certs.d/" + registry.Address + "/ca.crt":         string(authority),
			"/etc/cni/net.d/10-pods.conflist":                             fmt.Sprintf(networkConfig, n.pods),
		}},
	})
	if err != nil {
		return nil, err
	}
	// A machine has its containerd in one of these places.
	const furnish = `rm -rf /opt/cryo && mount -t tmpfs tmpfs /usr/local/sbin && cp "$1" /usr/local/sbin/`
	if err := n.Run(ctx, "sh", "-c", furnish, "sh", c.Lab.Tool("containerd")).Err(); err != nil {
		return nil, err
	}
	if err := n.join(ctx); err != nil {
		return nil, err
	}
	return n, c.WaitNode(ctx, n)
}

// Remove ends a node that [Cluster.Bare] has started.
func (c *Cluster) Remove(ctx context.Context, n *Node) error {
	c.nodes = slices.DeleteFunc(c.nodes, func(other *Node) bool { return other == n })
	results := []lab.Result{c.Kubectl(ctx, "delete", "node", n.Name), lab.Finish(c.Lab.Command(ctx, "ip", "route", "delete", n.pods))}
	for _, other := range c.nodes {
		results = append(results, other.Run(ctx, "ip", "route", "delete", n.pods))
	}
	err := n.Close()
	for _, r := range results {
		err = errors.Join(err, r.Err())
	}
	return err
}

// route lets the node's pods, the machine and the other nodes' pods reach each other.
func (n *Node) route(ctx context.Context) error {
	c := n.cluster
	results := []lab.Result{
		n.Run(ctx, "ip", "route", "add", "default", "via", c.Lab.Address()),
		lab.Finish(c.Lab.Command(ctx, "ip", "route", "add", n.pods, "via", n.Address)),
	}
	for _, other := range c.nodes {
		results = append(results, n.Run(ctx, "ip", "route", "add", other.pods, "via", other.Address), other.Run(ctx, "ip", "route", "add", n.pods, "via", n.Address))
	}
	for _, r := range results {
		if err := r.Err(); err != nil {
			return err
		}
	}
	return nil
}

// StartKubelet starts the node's kubelet. [Cluster.WaitNode] waits for it.
func (n *Node) StartKubelet(_ context.Context) (err error) {
	dir := filepath.Join(n.Dir, "node")
	n.begun = time.Now()
	n.kubelet, err = n.Launch("kubelet", "unshare", "--mount", "--propagation", "unchanged", "sh", "-c", kubeletScript, "sh", filepath.Join(dir, "sysctl"),
		n.cluster.Lab.Tool("kubernetes/kubelet"), "--config="+filepath.Join(dir, "kubelet.yaml"), "--kubeconfig="+filepath.Join(dir, "kubelet.kubeconfig"),
		"--hostname-override="+n.Name, "--node-ip="+n.Address, "--node-labels="+n.labels, "--v=2")
	return err
}

// StopKubelet ends the kubelet; pods live on.
func (n *Node) StopKubelet(sig syscall.Signal) error { return n.kubelet.Stop(sig) }

// RestartKubelet ends the kubelet as a signal does, starts another and waits until the node is ready.
func (n *Node) RestartKubelet(ctx context.Context, sig syscall.Signal) error {
	if err := n.StopKubelet(sig); err != nil {
		return err
	}
	if err := n.StartKubelet(ctx); err != nil {
		return err
	}
	return n.cluster.WaitNode(ctx, n)
}

// RestartContainerd ends containerd as a signal does, starts another and waits until it serves.
func (n *Node) RestartContainerd(ctx context.Context, sig syscall.Signal) error {
	if err := n.StopDaemon(sig); err != nil {
		return err
	}
	return n.StartDaemon(ctx)
}

// Crictl runs crictl on the node.
func (n *Node) Crictl(ctx context.Context, args ...string) lab.Result {
	return n.Run(ctx, append([]string{n.cluster.Lab.Tool("kubernetes/crictl"), "--runtime-endpoint=unix:///run/containerd/containerd.sock"}, args...)...)
}

// Checkpoint asks the node's kubelet for a checkpoint of a container, and gives the archive's path as the machine sees it.
func (n *Node) Checkpoint(ctx context.Context, namespace, pod, container string) (string, error) {
	var answer struct{ Items []string }
	path := fmt.Sprintf("/api/v1/nodes/%s/proxy/checkpoint/%s/%s/%s", n.Name, namespace, pod, container)
	if err := n.cluster.request(ctx, http.MethodPost, path, &answer); err != nil {
		return "", err
	}
	if len(answer.Items) != 1 {
		return "", fmt.Errorf("checkpoint %s: the kubelet named %d archives", pod, len(answer.Items))
	}
	return filepath.Join(n.Root(), answer.Items[0]), nil
}

// WaitNode waits until a node is ready whose kubelet was started.
func (c *Cluster) WaitNode(ctx context.Context, n *Node) error {
	begin := n.begun.Add(-time.Second) // times of the API are in seconds
	return c.wait(ctx, time.Minute, n.Name, func() (bool, error) {
		if ended := n.kubelet.Ended(); ended != nil {
			return true, ended
		}
		var node struct {
			Status struct {
				Conditions []struct {
					Type, Status, Message string
					LastHeartbeatTime     time.Time
				}
			}
		}
		if err := c.Get(ctx, "/api/v1/nodes/"+n.Name, &node); err != nil {
			return false, err
		}
		var why []string
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && condition.LastHeartbeatTime.After(begin) {
				return true, nil
			}
			why = append(why, condition.Type+"="+condition.Status+": "+condition.Message)
		}
		return false, fmt.Errorf("%s, see %s", strings.Join(why, "; "), n.kubelet.Log)
	})
}
