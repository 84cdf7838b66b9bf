package main

import "testing"

func TestPattern(t *testing.T) {
	for _, mixed := range []bool{false, true} {
		p, err := newPattern(8, 1, mixed)
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[int]int{}
		for page := range p.versions {
			kinds[p.kind(page)]++
		}
		if zeros := kinds[zero] * 100 / len(p.versions); mixed && (zeros < 50 || zeros > 90 || kinds[code] == 0 || kinds[random] == 0) || !mixed && kinds[random] != len(p.versions) {
			t.Errorf("mixed %v: kinds %v", mixed, kinds)
		}
		if n := p.damaged(); n != 0 {
			t.Errorf("mixed %v: %d pages are damaged at once", mixed, n)
		}
		if err := p.awaitFilled(); err != nil {
			t.Error(err)
		}
		p.pages[5*pageSize+1]++
		p.pages[len(p.pages)-1]++
		if n := p.damaged(); n != 2 {
			t.Errorf("mixed %v: %d pages are damaged, of 2", mixed, n)
		}
	}
}

// TestPatternChange changes as much as was asked for, every time anew, and knows it afterwards.
func TestPatternChange(t *testing.T) {
	p, err := newPattern(64, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []int{0, 16, 1, 1} {
		before := append([]byte{}, p.pages...)
		versions := append([]uint32{}, p.versions...)
		changed := p.change(10, run)
		different, runs := 0, 0
		for page := range p.versions {
			if p.versions[page] == versions[page] {
				continue
			}
			different++
			if page == 0 || p.versions[page-1] == versions[page-1] {
				runs++
			}
			if string(before[page*pageSize:(page+1)*pageSize]) == string(p.page(page)) {
				t.Errorf("page %d is as it was", page)
			}
		}
		want := len(p.versions) / 100
		if different != changed || different > want || different < want-16 {
			t.Errorf("runs of %d: %d pages differ, %d were said, of %d", run, different, changed, want)
		}
		if run == 0 && runs != 1 || run == 16 && runs > different/16 || run == 1 && runs < different/2 {
			t.Errorf("runs of %d: %d pages in %d runs", run, different, runs)
		}
		if n := p.damaged(); n != 0 {
			t.Errorf("runs of %d: %d pages are damaged", run, n)
		}
	}
}
