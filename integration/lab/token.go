package lab

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// tokenService gives out bearer tokens as https://distribution.github.io/distribution/spec/auth/token/ describes, to
// whoever knows User and Password.
type tokenService struct {
	url         string
	certificate string // file a registry checks signatures with
	der         []byte
	key         *ecdsa.PrivateKey
	server      *http.Server
}

// startTokenService serves HTTPS where there are files with a certificate and a key: a client that speaks to a registry over
// TLS does not give its password to a service without.
func startTokenService(dir, ip, cert, private string) (*tokenService, error) {
	der, key, err := selfSigned(ip)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		return nil, fmt.Errorf("start token service: %w", err)
	}
	s := &tokenService{url: "http://" + listener.Addr().String() + "/token", certificate: filepath.Join(dir, "token.crt"), der: der, key: key}
	if err := writePEM(s.certificate, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	// Serving ends with Close.
	if cert == "" {
		go func() { _ = s.server.Serve(listener) }()
		return s, nil
	}
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	go func() { _ = s.server.ServeTLS(listener, cert, private) }()
	return s, nil
}

// ServeHTTP answers both the GET of the token specification and the POST of OAuth2.
func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, ok := r.BasicAuth()
	if !ok {
		user, password = r.PostFormValue("username"), r.PostFormValue("password")
	}
	if user != User || password != Password {
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}`, http.StatusUnauthorized)
		return
	}
	_ = r.ParseForm()
	token, err := s.token(strings.Fields(strings.Join(r.Form["scope"], " ")))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300})
}

// token signs a JSON web token for scopes such as "repository:name:pull,push".
func (s *tokenService) token(scopes []string) (string, error) {
	access := []map[string]any{}
	for _, scope := range scopes {
		kind, rest, _ := strings.Cut(scope, ":")
		i := strings.LastIndexByte(rest, ':')
		if i < 0 {
			continue
		}
		access = append(access, map[string]any{"type": kind, "name": rest[:i], "actions": strings.Split(rest[i+1:], ",")})
	}
	now := time.Now()
	header := map[string]any{"typ": "JWT", "alg": "ES256", "x5c": []string{base64.StdEncoding.EncodeToString(s.der)}}
	claims := map[string]any{
		"iss": "lab", "sub": User, "aud": "lab", "jti": rand.Text(), "access": access,
		"nbf": now.Add(-time.Minute).Unix(), "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	}
	var parts []string
	for _, part := range []any{header, claims} {
		encoded, err := json.Marshal(part)
		if err != nil {
			return "", fmt.Errorf("encode token: %w", err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(encoded))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	a, b, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	signature := make([]byte, 64)
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	return strings.Join(append(parts, base64.RawURLEncoding.EncodeToString(signature)), "."), nil
}
