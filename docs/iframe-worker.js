// Browsers start no worker for a page that was opened from disk; there the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.loaded = new Promise((done) => this.frame.addEventListener("load", done, { once: true }));
      this.frame.srcdoc = `<script>postMessage = (data) => frameElement.answer(data)</${"script"}>`
        + `<script src="${new URL(url, location.href).href}"></${"script"}>`;
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
