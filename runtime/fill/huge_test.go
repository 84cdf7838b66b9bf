package fill

import (
	"reflect"
	"testing"
)

func TestHuge(t *testing.T) {
	const m = 1 << 20
	piece := func(from, to uint64) Piece { return Piece{{from, to - from}} }
	all := []Region{{Start: 0, End: 100 * m, Huge: true}}
	for name, test := range map[string]struct {
		layout Layout
		want   []Extent
	}{
		"nothing":        {Layout{Regions: all}, nil},
		"not advised":    {Layout{Pieces: []Piece{piece(2*m, 3*m), piece(3*m, 4*m)}}, nil},
		"one":            {Layout{[]Piece{piece(2*m, 3*m), piece(3*m, 4*m)}, all}, []Extent{{2 * m, 2 * m}}},
		"not aligned":    {Layout{[]Piece{piece(3*m, 4*m), piece(4*m, 5*m)}, all}, nil},
		"a page missing": {Layout{[]Piece{piece(2*m, 3*m-4096), piece(3*m, 4*m)}, all}, nil},
		"joined":         {Layout{[]Piece{piece(1*m, 2*m), piece(2*m, 3*m), piece(3*m, 4*m), piece(4*m, 5*m), piece(5*m, 6*m)}, all}, []Extent{{2 * m, 4 * m}}},
		"half advised":   {Layout{[]Piece{piece(2*m, 3*m), piece(3*m, 4*m)}, []Region{{Start: 0, End: 3 * m, Huge: true}}}, nil},
		"other advice":   {Layout{[]Piece{piece(2*m, 3*m), piece(3*m, 4*m)}, []Region{{Start: 0, End: 100 * m, Unshared: true}}}, nil},
	} {
		if got := test.layout.huge(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: gives %x instead of %x", name, got, test.want)
		}
	}
}
