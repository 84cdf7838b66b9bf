//go:build cgo

package main

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// TestSum compares the sums of a unit with NH as RFC 4418 writes it, in numbers of any size; and a byte changes those of its 32 KiB alone, in all passes.
func TestSum(t *testing.T) {
	r := rand.NewChaCha8([32]byte{7})
	unit := make([]byte, device.Unit)
	_, _ = r.Read(unit)
	k := newSumKey()
	sums := k.sum(unit)
	word := func(b []byte, i int) *big.Int { return big.NewInt(int64(binary.LittleEndian.Uint32(b[4*i:]))) }
	words, all := new(big.Int).Lsh(big.NewInt(1), 32), new(big.Int).Lsh(big.NewInt(1), 64)
	for _, n := range []int{0, 17, 31} {
		for pass := range sumPass {
			want := new(big.Int)
			for i := 0; i < sumUnit/4; i += 2 {
				a := word(unit[n*sumUnit:], i)
				b := word(unit[n*sumUnit:], i+1)
				a.Add(a, big.NewInt(int64(k[i+4*pass]))).Mod(a, words)
				b.Add(b, big.NewInt(int64(k[i+4*pass+1]))).Mod(b, words)
				want.Add(want, a.Mul(a, b))
			}
			if got := binary.LittleEndian.Uint64(sums[n*32+8*pass:]); want.Mod(want, all).Uint64() != got {
				t.Errorf("pass %d of part %d is %#x, not %#x", pass, n, got, want)
			}
		}
	}
	for _, at := range []int{0, sumUnit - 1, sumUnit, 5*sumUnit + 12345, device.Unit - 1} {
		unit[at] ^= 0x40
		for i, now := 0, k.sum(unit); i < sumSize; i += 8 {
			if differs := binary.LittleEndian.Uint64(now[i:]) != binary.LittleEndian.Uint64(sums[i:]); differs != (i/32 == at/sumUnit) {
				t.Errorf("byte %d: sum %d differs: %t", at, i/8, differs)
			}
		}
		unit[at] ^= 0x40
	}
	if newSumKey() == k || *newSumKey() == *k {
		t.Error("two keys are one")
	}
}
