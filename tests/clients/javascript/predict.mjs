// node predict.mjs COG_URL INPUT: a prediction by Replicate's client, its status and text as JSON.
import Replicate from "replicate";

const [url, input] = process.argv.slice(2);
const replicate = new Replicate({ auth: "none", baseUrl: url });
try {
  const { status, output } = await replicate.predictions.create({ version: "local", input: JSON.parse(input) });
  console.log(JSON.stringify({ status, text: output.join("") }));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
