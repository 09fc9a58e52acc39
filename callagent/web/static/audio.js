// μ-law (ITU-T G.711) and base64, as the sockets carry them.

const LINEAR = Float32Array.from({ length: 256 }, (_, code) => {
  const bits = ~code & 0xff;
  const magnitude = ((((bits & 0x0f) << 3) + 0x84) << ((bits & 0x70) >> 4)) - 0x84;
  return (bits & 0x80 ? -magnitude : magnitude) / 32768;
});

export function decode(bytes) {
  return Float32Array.from(bytes, (code) => LINEAR[code]);
}

export function encode(samples) {
  return Uint8Array.from(samples, (sample) => {
    const clipped = Math.max(-32635, Math.min(32635, Math.round(sample * 32767)));
    const magnitude = Math.abs(clipped) + 0x84;
    const exponent = Math.max(0, 24 - Math.clz32(magnitude));
    return ~((clipped < 0 ? 0x80 : 0) | (exponent << 4) | ((magnitude >> (exponent + 3)) & 0x0f)) & 0xff;
  });
}

export function toBase64(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
