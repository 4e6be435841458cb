// A worker for pages that are opened as files, where browsers start none: the script runs in a hidden frame instead, of
// the same page and in the same thread. The site's search needs one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.waiting = [];  // messages to a script that is not loaded yet
      const begin = () => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
        inside.importScripts = (...scripts) => Promise.all(scripts.map((script) => this.load(script)));
        this.load(url).then(() => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        }, (error) => this.dispatchEvent(new ErrorEvent("error", {message: String(error)})));
      };
      if (document.body) begin(); else addEventListener("DOMContentLoaded", begin);
    }

    load(url) {
      return new Promise((loaded, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = loaded;
        script.onerror = () => failed(new Error(`cannot load ${url}`));
        this.frame.contentDocument.head.append(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
