package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// htpasswd is User and Password with bcrypt, cost 5.
const htpasswd = User + ":$2b$05$Ux3kPq9ZrTm1VbN7sLw2yO.pJ41OaqGsa0X4U7eyPuetjyxOF.Sya\n"

// writeCertificate makes a self-signed certificate for an address, which is its own authority.
func (r *Registry) writeCertificate(ip string) (cert, key string, err error) {
	der, private, err := selfSigned(ip)
	if err != nil {
		return "", "", err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", fmt.Errorf("encode key: %w", err)
	}
	key = filepath.Join(r.Dir, "tls.key")
	if err := writePEM(key, "PRIVATE KEY", encoded); err != nil {
		return "", "", err
	}
	r.CA = filepath.Join(r.Dir, "ca.crt")
	return r.CA, key, writePEM(r.CA, "CERTIFICATE", der)
}

func selfSigned(ip string) (der []byte, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               pkix.Name{CommonName: "cryo lab"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		IPAddresses:           []net.IP{net.ParseIP(ip)},
	}
	der, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate: %w", err)
	}
	return der, key, nil
}

func writePEM(path, kind string, der []byte) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// trust is a configuration that trusts the authority in a file and no other.
func trust(ca string) *tls.Config {
	pool := x509.NewCertPool()
	if content, err := os.ReadFile(ca); err == nil {
		pool.AppendCertsFromPEM(content)
	}
	return &tls.Config{RootCAs: pool}
}
