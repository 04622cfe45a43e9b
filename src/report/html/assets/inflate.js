// Deflate (RFC 1951): what the large parts of the data are packed by.

const lengthBase = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258];
const lengthBits = lengthBase.map((_, i) => i < 8 || i > 27 ? 0 : (i >> 2) - 1);
const distanceBits = Array.from({length: 30}, (_, i) => i < 4 ? 0 : (i >> 1) - 1);
const distanceBase = distanceBits.reduce((all, bits) => [...all, all[all.length - 1] + 2 ** bits], [1]);
const lengthOrder = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

// A table by the next bits: symbol and length of the code that they begin with.
function huffman(lengths) {
  const most = Math.max(...lengths, 1), table = new Uint16Array(1 << most);
  for (let n = 1, code = 0; n <= most; n++, code <<= 1)
    for (let symbol = 0; symbol < lengths.length; symbol++) {
      if (lengths[symbol] !== n) continue;
      let first = 0;
      for (let bit = 0; bit < n; bit++) first |= (code >> bit & 1) << n - 1 - bit;
      for (let i = first; i < table.length; i += 1 << n) table[i] = symbol << 4 | n;
      code++;
    }
  return {table, most};
}

function inflate(from, n) {
  const out = new Uint8Array(n);
  let at = 0, end = 0, held = 0, bits = 0;
  const fill = k => { for (; held < k; held += 8) bits |= from[at++] << held; };
  const drop = k => { bits >>>= k; held -= k; };
  const take = k => { fill(k); const value = bits & (1 << k) - 1; drop(k); return value; };
  const symbol = ({table, most}) => { fill(most); const one = table[bits & (1 << most) - 1]; drop(one & 15); return one >> 4; };
  const readLengths = () => {
    const nLiterals = take(5) + 257, nDistances = take(5) + 1, own = Array(19).fill(0), all = [];
    for (let i = 0, k = take(4) + 4; i < k; i++) own[lengthOrder[i]] = take(3);
    for (const code = huffman(own); all.length < nLiterals + nDistances;) {
      const s = symbol(code), last = all[all.length - 1];
      if (s < 16) all.push(s);
      else all.push(...Array(s === 16 ? take(2) + 3 : s === 17 ? take(3) + 3 : take(7) + 11).fill(s === 16 ? last : 0));
    }
    return [all.slice(0, nLiterals), all.slice(nLiterals)].map(huffman);
  };
  const fixed = () => [Array.from({length: 288}, (_, i) => i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8), Array(30).fill(5)].map(huffman);
  for (let last = 0; !last;) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) {
      at -= held >> 3;
      held = bits = 0;
      const length = from[at] | from[at + 1] << 8;
      out.set(from.subarray(at += 4, at + length), end);
      at += length, end += length;
      continue;
    }
    const [literals, distances] = kind === 1 ? fixed() : readLengths();
    for (let s; (s = symbol(literals)) !== 256;) {
      if (s < 256) { out[end++] = s; continue; }
      const length = lengthBase[s - 257] + take(lengthBits[s - 257]), d = symbol(distances);
      for (let back = end - distanceBase[d] - take(distanceBits[d]), k = 0; k < length; k++) out[end++] = out[back++];
    }
  }
  return out;
}

// A value of the data that may be packed.
function unpack(value) {
  if (!value || !value.packed) return value;
  return JSON.parse(new TextDecoder().decode(inflate(Uint8Array.from(atob(value.packed), c => c.charCodeAt(0)), value.bytes)));
}
