"""An embedding service of your own: codes and vectors of uploaded images, inside any FastAPI app.

    pip install phpq
    PHPQ_MODEL=runs/birds uvicorn fastapi_embedding:app

`phpq serve` is the whole thing, with limits, a page and a gallery; this is for a stack that has
these already.
"""

import io
import os

from fastapi import FastAPI, HTTPException, UploadFile
from PIL import Image

import phpq

app = FastAPI()
model = phpq.load(os.environ["PHPQ_MODEL"])  # a folder, or owner/name of the hub


@app.post("/embed")
def embed(image: UploadFile) -> dict[str, object]:
    try:
        picture = Image.open(io.BytesIO(image.file.read())).convert("RGB")
    except OSError as error:
        raise HTTPException(422, "That is no image that can be read.") from error
    vector = model.embed(picture)
    code = model.codebooks.encode(vector)[0]
    return {"code": code.tobytes().hex(), "bits": model.bits, "embedding": vector[0].tolist()}
