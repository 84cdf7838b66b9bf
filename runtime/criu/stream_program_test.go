package criu_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

// streamProgram is the variable that makes the test program one end of a stream.
const streamProgram = "CRYO_TEST_STREAM"

func TestMain(m *testing.M) {
	if os.Getenv(streamProgram) == "" {
		os.Exit(m.Run())
	}
	own, peer, progress := os.Args[1], os.Args[2], os.Args[3]
	if err := stream(own, peer, progress); err != nil {
		_ = os.WriteFile(progress, []byte(err.Error()), 0o600) // the test reads it
		os.Exit(1)
	}
}

const (
	streamPort  = 4711 // of the end that listens
	numberBytes = 8
	batch       = 256 // numbers
)

// stream is one end of a TCP connection, which listens on the address own if peer is empty. It sends the numbers from 0 on as fast as they are taken, and checks those that it receives. The file progress has how
// many have come, or the first that was not the next. The program has a socket of UDP, too.
func stream(own, peer, progress string) error {
	file, err := os.Create(progress)
	if err != nil {
		return err
	}
	var connection net.Conn
	if peer == "" {
		listener, err := net.Listen("tcp", net.JoinHostPort(own, fmt.Sprint(streamPort)))
		if err != nil {
			return err
		}
		if connection, err = listener.Accept(); err != nil {
			return err
		}
		defer listener.Close()
	} else if connection, err = net.Dial("tcp", net.JoinHostPort(peer, fmt.Sprint(streamPort))); err != nil {
		return err
	}
	local := netip.MustParseAddrPort(connection.LocalAddr().String())
	bound, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Addr().Unmap(), 0)))
	if err != nil {
		return err
	}
	defer bound.Close()
	tcp := connection.(*net.TCPConn)
	const buffer = 64 << 10
	if err := errors.Join(tcp.SetReadBuffer(buffer), tcp.SetWriteBuffer(buffer)); err != nil {
		return err
	}
	failed := make(chan error)
	go func() { failed <- send(connection) }()
	go func() { failed <- receive(connection, file) }()
	return <-failed
}

func send(to io.Writer) error {
	numbers := make([]byte, 0, batch*numberBytes)
	for n := uint64(0); ; {
		numbers = numbers[:0]
		for range batch {
			numbers = binary.LittleEndian.AppendUint64(numbers, n)
			n++
		}
		if _, err := to.Write(numbers); err != nil {
			return fmt.Errorf("send the numbers before %d: %w", n, err)
		}
	}
}

func receive(from io.Reader, progress *os.File) error {
	in := bufio.NewReader(from)
	var number [numberBytes]byte
	for n := uint64(0); ; n++ {
		if _, err := io.ReadFull(in, number[:]); err != nil {
			return fmt.Errorf("receive the number %d: %w", n, err)
		}
		if got := binary.LittleEndian.Uint64(number[:]); got != n {
			return fmt.Errorf("the number %d has come in the place of %d", got, n)
		}
		if n%batch != 0 {
			continue
		}
		if _, err := progress.WriteAt(fmt.Appendf(nil, "%20d", n), 0); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // the other end waits for room, so that bytes are under way at each moment
	}
}
