package cluster

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// Options differ between clusters. The zero value is right for most.
type Options struct {
	Lab lab.Options
}

// Cluster is a running control plane with its nodes.
type Cluster struct {
	Lab        *lab.Lab
	Registry   *lab.Registry // where nodes pull all images, whatever the name: plain HTTP, everybody
	Kubeconfig string        // file with the administrator's credentials
	Base       string        // reference of the lab's base image in the registry
	GPU        string        // reference of an image with fakeapp of integration/fakecuda and the workload program, which asks it
	A, B       *Node

	dir    string
	tokens map[string]string // by user
	nodes  []*Node
	client *http.Client
}

// pause is the image of pods' sandboxes.
const pause = "pause:3.10.1"

// Start starts a cluster with two nodes, which are ready then.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	l, err := lab.Open(ctx, o.Lab)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Lab: l, dir: filepath.Join(l.Dir, "cluster"), tokens: map[string]string{}}
	c.Kubeconfig = filepath.Join(c.dir, "admin.kubeconfig")
	// A token says who is there; what certificates would add is no part of what is tested.
	c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	for _, name := range []string{"kubernetes/kubelet", "kubernetes/standin", "kubernetes/cni/bridge"} {
		if _, err := os.Stat(c.Lab.Tool(name)); err != nil {
			return &lab.MissingError{What: "no " + name, Hint: "run: make kubernetes"}
		}
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make cluster directory: %w", err)
	}
	if c.Registry, err = c.Lab.Registry(ctx, "registry", lab.RegistryOptions{}); err != nil {
		return err
	}
	if err := c.pushImages(ctx); err != nil {
		return err
	}
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	if c.A, err = c.startNode(ctx, "node-a"); err != nil {
		return err
	}
	if c.B, err = c.startNode(ctx, "node-b"); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := c.WaitNode(ctx, n); err != nil {
			return err
		}
	}
	root, err := lab.Checkout()
	if err != nil {
		return err
	}
	class, err := os.ReadFile(filepath.Join(root, "contrib/kubernetes/runtimeclass.yaml"))
	if err != nil {
		return fmt.Errorf("read the runtime class: %w", err)
	}
	if err := c.Apply(ctx, string(class)); err != nil {
		return err
	}
	// Pods are refused until their namespace has its service account.
	return c.wait(ctx, time.Minute, "the service account of namespace default", func() (bool, error) {
		err := c.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", &struct{}{})
		return err == nil, err
	})
}

// Close ends everything and removes all traces. The error names what could not be removed.
func (c *Cluster) Close() error { return c.Lab.Close() }

// Leaks lists what pods left behind on nodes that should be idle by now, see [lab.Lab.Leaks].
func (c *Cluster) Leaks() []string { return c.Lab.Leaks() }

// address of the API server. It is the one of the service "kubernetes", so that pods reach it without a proxy.
func (c *Cluster) address() string { return fmt.Sprintf("10.211.%d.1", c.Lab.Number()) }

// startControlPlane starts etcd and Kubernetes' components but the kubelets.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	key, err := c.writeKey()
	if err != nil {
		return err
	}
	if err := c.writeTokens("admin,admin,system:masters", "system:node:node-a,node-a,system:nodes", "system:node:node-b,node-b,system:nodes",
		"system:node:"+bare+",bare,system:nodes"); err != nil {
		return err
	}
	if err := c.writeKubeconfig("admin", c.Kubeconfig); err != nil {
		return err
	}
	if err := lab.Finish(c.Lab.Command(ctx, "ip", "address", "add", c.address()+"/32", "dev", c.Lab.Bridge())).Err(); err != nil {
		return err
	}
	etcd := "http://" + c.Lab.Address() + ":2379"
	if _, err := c.launch("etcd", "--data-dir="+filepath.Join(c.dir, "etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls=http://"+c.Lab.Address()+":2380", "--initial-advertise-peer-urls=http://"+c.Lab.Address()+":2380",
		"--initial-cluster=default=http://"+c.Lab.Address()+":2380", "--unsafe-no-fsync", "--log-level=warn"); err != nil {
		return err
	}
	certificates := filepath.Join(c.dir, "certificates")
	server, err := c.launch("kube-apiserver", "--etcd-servers="+etcd, "--cert-dir="+certificates, "--bind-address="+c.address(), "--advertise-address="+c.address(),
		"--secure-port=443", fmt.Sprintf("--service-cluster-ip-range=10.211.%d.0/24", c.Lab.Number()), "--authorization-mode=Node,RBAC",
		"--token-auth-file="+filepath.Join(c.dir, "tokens.csv"), "--allow-privileged", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--enable-aggregator-routing") // webhooks are reached by their pods' addresses: services have none
	if err != nil {
		return err
	}
	if err := c.wait(ctx, 2*time.Minute, "kube-apiserver", func() (bool, error) {
		if ended := server.Ended(); ended != nil {
			return true, ended
		}
		_, err := c.Do(ctx, http.MethodGet, "/readyz")
		return err == nil, err
	}); err != nil {
		return err
	}
	if _, err := c.launch("kube-controller-manager", "--kubeconfig="+c.Kubeconfig, "--service-account-private-key-file="+key,
		"--root-ca-file="+filepath.Join(certificates, "apiserver.crt"), "--use-service-account-credentials", "--leader-elect=false",
		"--bind-address="+c.Lab.Address(), "--cert-dir="+certificates+"-manager"); err != nil {
		return err
	}
	_, err = c.launch("kube-scheduler", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--bind-address="+c.Lab.Address(), "--cert-dir="+certificates+"-scheduler")
	return err
}

func (c *Cluster) launch(name string, args ...string) (*lab.Program, error) {
	return c.Lab.Launch(name, c.Lab.Command(context.Background(), c.Lab.Tool("kubernetes/"+name), args...))
}

// writeKey makes the key by which service accounts' tokens are signed, and gives its file.
func (c *Cluster) writeKey() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", fmt.Errorf("make key: %w", err)
	}
	path := filepath.Join(c.dir, "accounts.key")
	encoded := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(path, encoded, 0o600); err != nil {
		return "", fmt.Errorf("write key: %w", err)
	}
	return path, nil
}

// writeTokens gives each user a token. A user is one of the lines that --token-auth-file has, without the token: name, id, group.
func (c *Cluster) writeTokens(users ...string) error {
	var lines strings.Builder
	for _, user := range users {
		name, _, _ := strings.Cut(user, ",")
		c.tokens[name] = rand.Text()
		fmt.Fprintf(&lines, "%s,%s\n", c.tokens[name], user)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "tokens.csv"), []byte(lines.String()), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	return nil
}

func (c *Cluster) writeKubeconfig(user, path string) error {
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: user, user: {token: %s}}]
contexts: [{name: lab, context: {cluster: lab, user: user}}]
current-context: lab
`, c.address(), c.tokens[user])
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// wait repeats a check until it says that it is done. Its error is given then, or at the end of the time.
func (c *Cluster) wait(ctx context.Context, within time.Duration, what string, check func() (done bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		done, err := check()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: not within %s: %w", what, within, errors.Join(err, ctx.Err()))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
