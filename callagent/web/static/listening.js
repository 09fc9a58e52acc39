// Listening in: each message has 20 ms of caller and agent, which are mixed and played.

import { decode } from "/static/audio.js";

export async function listenIn(line, ended) {
  line.binaryType = "arraybuffer";
  const audio = new AudioContext({ latencyHint: "interactive" });
  const close = () => {
    line.close();
    if (audio.state !== "closed") audio.close();
    ended();
  };
  line.addEventListener("close", close, { once: true });
  await audio.audioWorklet.addModule("/static/phone_worklet.js");
  const worklet = new AudioWorkletNode(audio, "phone", { numberOfInputs: 0, outputChannelCount: [1] });
  worklet.connect(audio.destination);
  line.addEventListener("message", ({ data }) => {
    const sides = new Uint8Array(data);
    const caller = decode(sides.subarray(0, sides.length / 2));
    const agent = decode(sides.subarray(sides.length / 2));
    worklet.port.postMessage({ samples: caller.map((sample, place) => sample + agent[place]) });
  });
  return () => line.close();
}
