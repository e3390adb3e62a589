// Search a gallery without Python: the encoder by onnxruntime-node, the codes by a plain loop.
//
//   npm install onnxruntime-node
//   python export.py birds.gallery photo.jpg exported
//   node search.mjs exported 5
//
// The score of an image is the sum, over codebooks, of the inner product of the photo's sub-vector
// and the codeword that the image's code names.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { InferenceSession, Tensor } from "onnxruntime-node";

const [folder, topK = "10"] = process.argv.slice(2);
const facts = JSON.parse(readFileSync(join(folder, "facts.json"), "utf8"));
const codes = new Uint8Array(readFileSync(join(folder, "codes.u8")));
const floats = readFileSync(join(folder, "codebooks.f32"));
const words = new Float32Array(floats.buffer, floats.byteOffset, floats.length / 4);
const pixels = new Uint8Array(readFileSync(join(folder, "photo.u8")));

const session = await InferenceSession.create(join(folder, "encoder.onnx"));
const input = new Tensor("uint8", pixels, [1, 3, facts.side, facts.side]);
const { embedding } = await session.run({ pixels: input });

const [books, size, width] = facts.codebooks;
const tables = new Float32Array(books * size);
for (let book = 0; book < books; book++) {
  const part = embedding.data.slice(book * width, (book + 1) * width);
  const length = facts.unit ? Math.hypot(...part) || 1 : 1;
  for (let word = 0; word < size; word++) {
    let sum = 0;
    const start = (book * size + word) * width;
    for (let place = 0; place < width; place++) sum += part[place] * words[start + place];
    tables[book * size + word] = sum / length;
  }
}
const hits = facts.ids.map((id, row) => {
  let score = 0;
  for (let book = 0; book < books; book++) score += tables[book * size + codes[row * books + book]];
  return { id, score };
});
hits.sort((one, other) => other.score - one.score);
console.log(JSON.stringify(hits.slice(0, Number(topK))));
