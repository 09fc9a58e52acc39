// The audio thread: sends the microphone in frames of 20 ms at 8 kHz, and plays received audio as it arrives.

const RATE = 8000;
const FRAME = 160;

// Windowed-sinc resampling of a stream; one object for each direction.
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    this.cutoff = Math.min(1, to / from) * 0.92;
    this.reach = Math.ceil(12 / this.cutoff);
    this.samples = new Float32Array(2 * this.reach);
    this.at = this.reach;
  }

  feed(input) {
    const joined = new Float32Array(this.samples.length + input.length);
    joined.set(this.samples);
    joined.set(input, this.samples.length);
    const output = [];
    while (this.at + this.reach < joined.length) {
      output.push(this.value(joined));
      this.at += this.step;
    }
    const first = Math.floor(this.at) - this.reach;
    this.samples = joined.slice(first);
    this.at -= first;
    return output;
  }

  value(samples) {
    const middle = Math.floor(this.at);
    let sum = 0;
    for (let place = middle - this.reach + 1; place <= middle + this.reach; place++) {
      const distance = place - this.at;
      const turn = Math.PI * distance * this.cutoff;
      const sinc = distance === 0 ? 1 : Math.sin(turn) / turn;
      sum += samples[place] * sinc * this.cutoff * (0.5 + 0.5 * Math.cos((Math.PI * distance) / (this.reach + 1)));
    }
    return sum;
  }
}

class Phone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.down = new Resampler(sampleRate, RATE);
    this.up = new Resampler(RATE, sampleRate);
    this.heard = [];
    this.waiting = []; // samples to play, and the names of marks between them
    this.port.onmessage = ({ data }) => {
      if (data.samples) this.waiting.push({ samples: this.up.feed(data.samples), place: 0 });
      else if (data.mark) this.waiting.push({ mark: data.mark });
      else if (data.clear) this.clear();
    };
  }

  clear() {
    // Dropped audio counts as played: its marks are reported at once.
    for (const item of this.waiting) if (item.mark) this.port.postMessage({ mark: item.mark });
    this.waiting = [];
  }

  process([input], [output]) {
    if (input?.[0]) this.heard.push(...this.down.feed(input[0]));
    while (this.heard.length >= FRAME) this.port.postMessage({ frame: Float32Array.from(this.heard.splice(0, FRAME)) });
    let place = 0;
    while (place < output[0].length && this.waiting.length) {
      const item = this.waiting[0];
      if (item.samples && item.place < item.samples.length) {
        output[0][place++] = item.samples[item.place++];
        continue;
      }
      if (item.mark) this.port.postMessage({ mark: item.mark });
      this.waiting.shift();
    }
    for (const channel of output.slice(1)) channel.set(output[0]);
    // Marks that stand before the next sample are reached as well.
    while (this.waiting[0]?.mark) this.port.postMessage({ mark: this.waiting.shift().mark });
    return true;
  }
}

registerProcessor("phone", Phone);
