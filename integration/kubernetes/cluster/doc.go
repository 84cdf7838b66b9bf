// Package cluster runs Kubernetes' own components on hosts of package lab, for tests and experiments: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler on the machine, a kubelet beside the containerd of each node, a registry from which the nodes pull every image. Pods of all nodes
// reach each other and the API server. Each node has two GPUs by the fake driver of integration/fakecuda. There is no kube-proxy and no DNS: services have no addresses but the API server's,
// which reaches webhooks by the addresses of their pods.
//
// A lab has the number N, and so:
//
//	10.213.N.0/24      the lab's bridge: registry, etcd, nodes
//	10.211.N.1:443     the API server
//	10.212.N.0/24      pods: a /26 for each node
//
// It has the files of a lab, and beyond these:
//
//	<dir>/<n>/cluster/    etcd's data, certificates, tokens, kubeconfig files
//	<dir>/<n>/*.log       what the components say
//	<dir>/<n>/<node>/     kubelet.log; node/ has what the node writes below /etc, /opt and /var
package cluster
