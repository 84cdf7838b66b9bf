package registry

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// dockerCerts is where Docker keeps registries' certificates, see
// https://docs.docker.com/engine/security/certificates/.
const dockerCerts = "/etc/docker/certs.d"

// tlsConfig trusts the system, Docker's authorities for this host, the file in the options, and what containerd's configuration says (base; nil: nothing).
func tlsConfig(host, certs string, o Options, base *tls.Config) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.Insecure}
	var pool *x509.CertPool
	if base != nil {
		c.InsecureSkipVerify = c.InsecureSkipVerify || base.InsecureSkipVerify
		c.Certificates, pool = base.Certificates, base.RootCAs
	}
	if pool == nil {
		var err error
		if pool, err = x509.SystemCertPool(); err != nil {
			pool = x509.NewCertPool()
		}
	}
	if o.CAFile != "" {
		if err := addAuthorities(pool, o.CAFile); err != nil {
			return nil, err
		}
	}
	if err := addDocker(c, pool, filepath.Join(certs, host)); err != nil {
		return nil, err
	}
	c.RootCAs = pool
	return c, nil
}

func addAuthorities(pool *x509.CertPool, path string) error {
	pem, err := os.ReadFile(path)
	if err != nil {
		return authorityError(path, err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return authorityError(path, errors.New("no certificate in it"))
	}
	return nil
}

// addDocker reads *.crt as authorities and pairs of *.cert and *.key as our own certificates.
func addDocker(c *tls.Config, pool *x509.CertPool, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return authorityError(dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch filepath.Ext(path) {
		case ".crt":
			if err := addAuthorities(pool, path); err != nil {
				return err
			}
		case ".cert":
			pair, err := tls.LoadX509KeyPair(path, strings.TrimSuffix(path, ".cert")+".key")
			if err != nil {
				return authorityError(path, err)
			}
			c.Certificates = append(c.Certificates, pair)
		}
	}
	return nil
}
